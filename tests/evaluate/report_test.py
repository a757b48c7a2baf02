import base64
import html.parser
import json

import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.evaluate import metrics
from dflash_jax.evaluate import plots
from dflash_jax.evaluate import report
from dflash_jax.evaluate import summary as summary_lib

ROWS = [{'step': 1, 'loss': 2.0}]
CONFIG = {'model': '</pre><script>', 'block_size': 4}
VOID = {'meta', 'img'}


class Checker(html.parser.HTMLParser):
  """Fails on an unbalanced tag; collects tags, images and text."""

  def __init__(self, page):
    super().__init__()
    self.open, self.tags, self.images, self.words = [], [], [], []
    self.feed(page)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    if tag == 'img':
      self.images.append(dict(attrs)['src'])
    if tag not in VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.words.append(data)


def evaluation(num_prompts=7, **changes):
  """A summary and the requests it is of: two rounds each, slot 1 right."""
  spec, ar = [], []
  for i in range(num_prompts):
    name = f'<script>{i}'
    tokens = [i] * 5
    spec.append(metrics.Request(name, 4, '', tokens, [2, 2], [1, 1], 0.5))
    ar.append(metrics.Request(name, 4, '', tokens, [1] * 4, [0] * 4, 0.25))
  anchors = 4 * num_prompts
  valid = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]] * num_prompts)
  result = summary_lib.summarize(
      requests_spec=spec,
      requests_ar=ar,
      ranks=np.tile([0, 9, 16], (anchors, 1)),
      hits=np.tile([True, False, False], (anchors, 1)),
      valid=valid.reshape(anchors, 3) == 1,
      anchor_request=np.repeat(np.arange(num_prompts), 4),
      anchor_position=np.tile(np.arange(4), num_prompts),
      block_size=4,
      lossless={'lossless': True, 'near_ties': 0},
      versions={'jax': '0.10.2'},
      device='cpu',
  )
  return result | changes, spec


def to_bytes(ids):
  return b''.join(b'<img src=x>' for _ in ids)


def test_report_is_complete_and_self_contained(tmp_path):
  summary, requests = evaluation()
  assert summary['simulated_equals_decoded']
  path = report.write_report(
      tmp_path, summary, requests, ROWS, CONFIG, to_bytes
  )
  names = sorted(p.name for p in tmp_path.iterdir())
  pictures = ['accepted_histogram', 'suffix_decay', 'training_curves']
  assert names == sorted(
      ['report.html', 'summary.json', *(f'{name}.png' for name in pictures)]
  )
  assert json.loads((tmp_path / 'summary.json').read_text()) == summary
  page = Checker(path.read_text())
  assert len(page.images) == 3
  for source in page.images:
    head, data = source.split(',')
    assert head == 'data:image/png;base64'
    assert base64.b64decode(data).startswith(b'\x89PNG')
  assert 'script' not in page.tags and 'link' not in page.tags
  words = ''.join(page.words)
  assert '</pre><script>' in words and '<img src=x>' in words
  assert page.words.count('<script>0') + page.words.count('<script>6') == 2
  assert 'Lossless: every' in words and 'NOT LOSSLESS' not in words
  assert '2.00 / 4.00 = 0.50' in words  # a round of 250 ms, steps of 62.5 ms
  assert "this machine's, not the" in words
  assert '$' not in words and 'None' not in words and 'nan' not in words


def test_a_lossy_run_says_so(tmp_path):
  summary, requests = evaluation(lossless=False, device='TPU v5e')
  page = report.write_report(tmp_path, summary, requests, [], {}, to_bytes)
  words = ''.join(Checker(page.read_text()).words)
  assert 'NOT LOSSLESS' in words and "this machine's" not in words
  assert not (tmp_path / 'training_curves.png').exists()


def test_no_requests(tmp_path):
  summary, requests = evaluation(0)
  page = report.write_report(tmp_path, summary, requests, [], {}, to_bytes)
  words = ''.join(Checker(page.read_text()).words)
  assert 'Nothing was decoded' in words and 'None' not in words


def test_failures_leave_nothing_half_written(tmp_path):
  summary, requests = evaluation(tau_mean=float('nan'))
  with pytest.raises(ValueError, match='JSON'):
    report.write_report(tmp_path / 'a', summary, requests, [], {}, to_bytes)
  assert not (tmp_path / 'a').exists()
  (tmp_path / 'file').write_text('')
  summary, requests = evaluation()
  with pytest.raises(errors.UserError, match='cannot write'):
    report.write_report(tmp_path / 'file', summary, requests, [], {}, to_bytes)


def test_reference_lines_are_the_published_ones():
  lengths = [metrics.expected_length(r) for r in plots.REFERENCE.values()]
  assert lengths == pytest.approx([4.27, 6.79], abs=0.011)
