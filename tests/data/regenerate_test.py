import errno
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import dflash_jax
from dflash_jax import errors
from dflash_jax.data import corpus
from dflash_jax.data import journal
from dflash_jax.data import regenerate

PROMPTS = [(f'p{i}', [i] * (1 + 3 * i % 7)) for i in range(8)]
FACTS = {'target': 't', 'sampling': {'temperature': 0.0, 'top': (1, 2)}}


def _answer(prompts):
  return [(np.arange(len(p), dtype=np.int32), len(p) > 3) for p in prompts]


def _run(folder, prompts=tuple(PROMPTS), generate=_answer, **changes):
  arguments = {'batch_size': 3, 'manifest': FACTS, **changes}
  return regenerate.regenerate(prompts, generate, folder, **arguments)


def _never(prompts):
  raise AssertionError(f'was asked for {len(prompts)} more responses')


def _stop_after(num_batches):
  """A model that breaks down when `num_batches` are done."""
  done = []

  def generate(prompts):
    if len(done) == num_batches:
      raise KeyboardInterrupt
    done.append(prompts)
    return _answer(prompts)

  return generate


def test_every_prompt_has_its_own_response_in_order(tmp_path):
  returned = _run(tmp_path / 'corpus')
  examples, manifest = corpus.read(tmp_path / 'corpus')
  assert manifest == returned
  assert [(e.id, e.prompt.tolist()) for e in examples] == PROMPTS
  for example in examples:
    assert example.response.tolist() == list(range(len(example.prompt)))
    assert example.finished == (len(example.prompt) > 3)
  assert manifest['sampling'] == {'temperature': 0.0, 'top': [1, 2]}
  assert manifest['num_examples'] == len(PROMPTS)
  assert manifest['batch_size'] == 3
  assert len(manifest['prompt_tokens_sha256']) == 64
  assert not (tmp_path / 'corpus' / 'responses.journal').exists()


def test_batches_hold_like_lengths_longest_first(tmp_path):
  seen = []

  def generate(prompts):
    seen.append([len(p) for p in prompts])
    return _answer(prompts)

  _run(tmp_path, generate=generate)
  assert seen == [[7, 6, 5], [4, 3, 2], [1, 1]]


def test_progress_begins_where_the_last_run_ended(tmp_path):
  with pytest.raises(KeyboardInterrupt):
    _run(tmp_path, generate=_stop_after(1))
  seen = []
  _run(tmp_path, progress=lambda done, total: seen.append((done, total)))
  assert seen == [(3, 8), (6, 8), (8, 8)]


def test_a_finished_corpus_is_returned_at_once(tmp_path):
  made = _run(tmp_path)
  before = sorted(p.name for p in tmp_path.rglob('*'))
  assert _run(tmp_path, generate=_never) == made
  assert sorted(p.name for p in tmp_path.rglob('*')) == before


def test_survives_sigkill_anywhere(tmp_path):
  script = pathlib.Path(__file__).with_name('kill_regenerate.py')
  root = pathlib.Path(dflash_jax.__file__).parents[1]
  result = subprocess.run(
      [sys.executable, script, tmp_path],
      env={**os.environ, 'PYTHONPATH': str(root)},
      capture_output=True,
      text=True,
      check=False,
  )
  assert result.returncode == 0, result.stderr
  report = json.loads(result.stdout)
  assert report['failures'] == []
  assert report['kills'] > 50


def test_resumes_from_a_record_torn_at_any_byte(tmp_path):
  made = _run(tmp_path / 'whole')
  folder = tmp_path / 'torn'
  with pytest.raises(KeyboardInterrupt):
    _run(folder, generate=_stop_after(2))
  path = folder / 'responses.journal'
  full = path.read_bytes()
  start = full[:-1].rindex(b'\n') + 1
  for end in range(start, len(full)):
    path.write_bytes(full[:end])
    with pytest.raises(KeyboardInterrupt):
      _run(folder, generate=_stop_after(1))
    assert path.read_bytes() == full
  path.write_bytes(full[:-1])
  assert _run(folder)['files'] == made['files']


@pytest.mark.parametrize('num_batches', [1, 3])
@pytest.mark.parametrize(
    'changes, message',
    [
        ({'manifest': {**FACTS, 'target': 'u'}}, 'target was "t", is now "u"'),
        (
            {'manifest': {**FACTS, 'sampling': {'temperature': 1.0}}},
            'sampling.temperature was 0.0, is now 1.0; sampling.top was'
            r' \[1, 2\], is now null',
        ),
        ({'manifest': {'target': 't'}}, 'sampling was {.*}, is now null'),
        ({'batch_size': 4}, 'batch_size was 3, is now 4'),
        ({'prompts': PROMPTS[:5]}, 'num_examples was 8, is now 5'),
        ({'prompts': [*PROMPTS[:7], ('p7', [9])]}, 'tokens_sha256 was "'),
    ],
)
def test_other_settings_are_refused(tmp_path, changes, message, num_batches):
  try:
    _run(tmp_path, generate=_stop_after(num_batches))
  except KeyboardInterrupt:
    pass
  with pytest.raises(errors.UserError, match=message):
    _run(tmp_path, **{'generate': _never, **changes})
  _run(tmp_path)


@pytest.mark.parametrize(
    'prompts, message',
    [
        ([], 'no prompts'),
        ([('a', [1]), ('b', [])], "prompt 'b' is empty"),
        ([('a', [1]), ('a', [2])], "prompt id 'a' is used twice"),
    ],
)
def test_bad_prompts_are_refused_before_anything(tmp_path, prompts, message):
  with pytest.raises(errors.UserError, match=message):
    _run(tmp_path / 'corpus', prompts=prompts, generate=_never)
  assert not (tmp_path / 'corpus').exists()


def test_an_unwritable_folder_is_refused_before_work(tmp_path):
  (tmp_path / 'file').write_text('')
  for folder in (tmp_path / 'file', tmp_path / 'file' / 'corpus'):
    with pytest.raises(errors.UserError, match='cannot write'):
      _run(folder, generate=_never)


def test_a_folder_in_use_is_refused(tmp_path):
  with journal.exclusive(tmp_path):
    with pytest.raises(errors.UserError, match='by another process'):
      _run(tmp_path, generate=_never)


@pytest.mark.parametrize('call', range(1, 10))
def test_a_full_disk_is_one_error_loses_nothing(tmp_path, monkeypatch, call):
  made = _run(tmp_path / 'whole')
  real, calls = os.fsync, []

  def fsync(descriptor):
    calls.append(descriptor)
    if len(calls) == call:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real(descriptor)

  folder = tmp_path / 'full'
  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', fsync)
    with pytest.raises(errors.UserError, match='No space left on device'):
      _run(folder)
  assert not (folder / 'manifest.json').exists()
  left = {path.name for path in folder.iterdir()}
  assert left <= {'.lock', 'responses.journal', 'dataset'}
  assert _run(folder)['files'] == made['files']


def test_a_model_that_loses_a_response_is_a_bug(tmp_path):
  with pytest.raises(ValueError, match='gave 2 responses to 3 prompts'):
    _run(tmp_path, generate=lambda prompts: _answer(prompts)[1:])
