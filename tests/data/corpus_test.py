import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

import dflash_jax
from dflash_jax import errors
from dflash_jax.data import corpus

ORIGIN = {'target': 't', 'num_examples': 10}


def _examples(num=10, length=7):
  rng = np.random.default_rng(0)
  return [
      corpus.Example(
          id=f'é/{i}',
          prompt=rng.integers(0, 2**31 - 1, 1 + i, np.int32),
          response=rng.integers(0, 2**31 - 1, i * length, np.int32),
          finished=i % 3 == 0,
      )
      for i in range(num)
  ]


def _values(examples):
  return [
      (e.id, e.prompt.tolist(), e.response.tolist(), e.finished)
      for e in examples
  ]


@pytest.fixture(name='folder')
def _folder(tmp_path, monkeypatch):
  monkeypatch.setattr(corpus, 'EXAMPLES_PER_SHARD', 4)
  corpus.write(tmp_path / 'corpus', _examples(), ORIGIN)
  return tmp_path / 'corpus'


def test_reads_what_was_written(folder):
  examples, manifest = corpus.read(folder)
  assert _values(examples) == _values(_examples())
  assert {e.prompt.dtype for e in examples} == {np.dtype(np.int32)}
  assert {type(e.finished) for e in examples} == {bool}
  assert manifest['target'] == 't'
  assert manifest['num_prompt_tokens'] == 55
  assert manifest['num_response_tokens'] == 7 * 45
  assert manifest['num_finished'] == 4
  assert manifest['created'].endswith('+00:00')
  assert set(manifest) == {*ORIGIN, *corpus.SUMMARY}
  shards = [name for name in manifest['files'] if 'array_record' in name]
  assert len(shards) == 3


def test_equal_examples_give_equal_files(folder, tmp_path):
  again = corpus.write(tmp_path / 'again', _examples(), ORIGIN)
  assert again['files'] == corpus.read(folder)[1]['files']


def test_is_read_where_tensorflow_is_missing(folder):
  script = '''if True:
      import importlib.machinery, sys
      finder = importlib.machinery.PathFinder
      find = finder.find_spec
      finder.find_spec = lambda name, *rest: (
          None if name.split('.')[0] == 'tensorflow' else find(name, *rest))
      from dflash_jax.data import corpus
      examples, _ = corpus.read(sys.argv[1])
      print(sum(len(e.response) for e in examples))
  '''
  root = pathlib.Path(dflash_jax.__file__).parents[1]
  result = subprocess.run(
      [sys.executable, '-W', 'error', '-c', script, folder],
      env={**os.environ, 'PYTHONPATH': str(root)},
      capture_output=True,
      text=True,
      check=False,
  )
  assert (result.stdout, result.stderr) == (f'{7 * 45}\n', '')


def test_a_missing_or_unfinished_corpus_says_how_to_make_it(folder, tmp_path):
  for missing in (tmp_path / 'none', folder / 'manifest.json' / 'below'):
    with pytest.raises(errors.UserError, match='run its regenerate stage'):
      corpus.read(missing)
  (folder / 'manifest.json').unlink()
  with pytest.raises(errors.UserError, match='goes on where it stopped'):
    corpus.read(folder)


@pytest.mark.parametrize('content', ['', '{', '[]', '{}', '{"files": 1}'])
def test_a_damaged_manifest_is_named(folder, content):
  (folder / 'manifest.json').write_text(content)
  with pytest.raises(errors.UserError, match='manifest.json is damaged'):
    corpus.read(folder)


def test_any_damaged_or_missing_file_is_named(folder):
  files = corpus.read(folder)[1]['files']
  for name in files:
    path = folder / 'dataset' / name
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for bad in (bytes(flipped), data[:-1], data + b'x', b''):
      path.write_bytes(bad)
      with pytest.raises(errors.UserError, match=f'{name} is damaged'):
        corpus.read(folder)
    path.unlink()
    with pytest.raises(errors.UserError, match=f'{name} is damaged'):
      corpus.read(folder)
    path.write_bytes(data)
  corpus.read(folder)
  shutil.rmtree(folder / 'dataset')
  with pytest.raises(errors.UserError, match='is damaged or missing'):
    corpus.read(folder)


def test_a_shard_that_cannot_grow_leaves_nothing(tmp_path):
  # The limit on the size of a file stands for a full disk: it reaches the C++
  # writer of array_record too.
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
  try:
    with pytest.raises(errors.UserError, match='cannot write .*: .*larg'):
      corpus.write(tmp_path / 'corpus', _examples(100, 100), ORIGIN)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert not list((tmp_path / 'corpus').iterdir())


def test_an_unwritable_folder_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot write .*Not a directory'):
    corpus.write(tmp_path / 'file', _examples(), ORIGIN)


def test_the_manifest_is_written_last(tmp_path, monkeypatch):
  seen = []
  real = os.replace

  def replace(source, target):
    seen.append(pathlib.Path(target).name)
    real(source, target)

  monkeypatch.setattr(os, 'replace', replace)
  corpus.write(tmp_path, _examples(), ORIGIN)
  assert seen == ['dataset', 'manifest.json']
  assert json.loads((tmp_path / 'manifest.json').read_text())['target'] == 't'
