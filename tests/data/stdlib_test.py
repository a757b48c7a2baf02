"""Tests of the standard library as a corpus."""

import sysconfig

import pytest

from dflash_jax import errors
from dflash_jax.data import stdlib


def test_sources():
  sources = stdlib.sources()
  names = [name for name, _ in sources]
  assert names == sorted(set(names))
  assert {'argparse.py', 'json/decoder.py', 'asyncio/events.py'} <= set(names)
  assert not [
      name for name in names
      if {'test', 'tests', 'idlelib', 'lib2to3', 'site-packages'}
      & set(name.split('/')) or '_sysconfigdata' in name or name[0] == '/'
  ]
  assert sum(len(text) for _, text in sources) > 5_000_000
  assert sources == stdlib.sources()


def test_no_sources(monkeypatch, tmp_path):
  monkeypatch.setattr(sysconfig, 'get_path', lambda _: str(tmp_path))
  with pytest.raises(errors.UserError, match='no Python sources in'):
    stdlib.sources()


def test_declared_encodings_are_honoured(monkeypatch, tmp_path):
  monkeypatch.setattr(sysconfig, 'get_path', lambda _: str(tmp_path))
  (tmp_path / 'b.py').write_bytes(b'# coding: latin-1\nx = "\xe9"\r\n')
  (tmp_path / 'a.py').write_bytes('x = "é"'.encode())
  assert stdlib.sources() == [
      ('a.py', 'x = "é"'), ('b.py', '# coding: latin-1\nx = "é"\n')
  ]


def test_split_goes_by_the_name():
  files = [(f'file{i}.py', str(i)) for i in range(2000)]
  train, heldout = stdlib.split(files, 0.1)
  assert sorted(train + heldout) == sorted(files)
  assert 150 < len(heldout) < 250
  assert train == [file for file in files if file in set(train)]
  few_train, few_heldout = stdlib.split(files[::2], 0.1)
  assert set(few_train) <= set(train) and set(few_heldout) <= set(heldout)
  _, more = stdlib.split(files, 0.2)
  assert set(heldout) < set(more)


@pytest.mark.parametrize('fraction', [-0.1, 0, 1, 1.5, float('nan')])
def test_fraction_out_of_range(fraction):
  with pytest.raises(errors.UserError, match='between 0 and 1'):
    stdlib.split([('a', '')], fraction)


def test_empty_side():
  with pytest.raises(errors.UserError, match='leaves no file on one side'):
    stdlib.split([('a', ''), ('b', '')], 1e-9)
