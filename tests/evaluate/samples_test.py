import html
import re

import pytest

from dflash_jax.evaluate import metrics
from dflash_jax.evaluate import samples

PIECES = [b'<b>', b'a', b'\xc3', b'\xa9', b'&', b'"', b'\n', b'\xe2\x82']


def to_bytes(ids):
  return b''.join(PIECES[i] for i in ids)


def request(tokens, produced, accepted, id='r'):
  return metrics.Request(id, 3, '', tokens, produced, accepted, 1.0)


def test_text_is_escaped_and_whole():
  """Characters split over rounds, markup in the text, a cut last character."""
  tokens = [0, 1, 2, 3, 4, 5, 6, 7]
  page = samples.render(request(tokens, [2, 4, 1], [1, 3, 2], '<i>'), to_bytes)
  assert '&lt;i&gt;' in page and '<i>' not in page
  body = re.search('<div class="text">(.*)</div>', page, re.DOTALL)[1]
  pattern = '<span class="(even|odd)".*?>(.*?)</span>'
  spans = re.findall(pattern, body, re.DOTALL)
  assert [kind for kind, _ in spans] == ['even', 'odd', 'even']
  assert spans[0][1] == '<b>a</b>'  # the bonus is half a character
  assert spans[1][1] == '<b>é&amp;&quot;</b>\n'
  assert spans[2][1] == '<b></b>�'  # accepted in part, cut by the budget
  text = html.unescape(re.sub('</?(b|span)( .*?)?>', '', body))
  assert text == to_bytes(tokens).decode(errors='replace')


@pytest.mark.parametrize('num, expected', [
    (0, []), (1, [0]), (3, [0, 1, 2]), (11, [0, 2, 5, 8, 10]),
])
def test_samples_are_spread_over_the_acceptance_lengths(num, expected):
  requests = [
      request([1] * (i + 2), [i + 1], [i], str(i)) for i in reversed(range(num))
  ]
  requests.append(request([1], [], [], 'no rounds'))
  chosen = [r.id for r in samples.spread(requests)]
  assert chosen == [str(i) for i in expected]
