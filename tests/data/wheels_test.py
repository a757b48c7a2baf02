"""Tests of taking a file out of a wheel; pip is real, the network is not."""

import errno
import os
import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

import pytest

from dflash_jax import errors
from dflash_jax.data import wheels


@pytest.fixture(name='index')
def fixture_index(monkeypatch, tmp_path):
  """A folder with one wheel, which is all that pip can see."""
  links = tmp_path / 'links'
  links.mkdir()
  info = 'a_project-1.2.dist-info'
  with zipfile.ZipFile(
      links / 'a_project-1.2-py3-none-any.whl', 'w'
  ) as archive:
    archive.writestr('a_project/file.bin', b'content')
    archive.writestr(
        f'{info}/METADATA',
        'Metadata-Version: 2.1\nName: a-project\nVersion: 1.2\n'
        'Requires-Dist: does-not-exist==9\n',
    )
    archive.writestr(
        f'{info}/WHEEL',
        'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    )
    archive.writestr(f'{info}/RECORD', '')
  for key in [key for key in os.environ if key.startswith('PIP_')]:
    monkeypatch.delenv(key)
  monkeypatch.setenv('PIP_CONFIG_FILE', os.devnull)
  monkeypatch.setenv('PIP_NO_INDEX', '1')
  monkeypatch.setenv('PIP_FIND_LINKS', str(links))
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(temporary))
  return temporary


def test_reads_the_member_and_cleans_up(index):
  data = wheels.read_member('a-project==1.2', 'a_project/file.bin')
  assert data == b'content'
  assert not list(index.iterdir())


def test_missing_member(index):
  with pytest.raises(errors.UserError, match='a-project==1.2 has no.*other'):
    wheels.read_member('a-project==1.2', 'a_project/other.bin')
  assert not list(index.iterdir())


def test_missing_version(index):
  with pytest.raises(errors.UserError) as info:
    wheels.read_member('a-project==1.3', 'a_project/file.bin')
  assert 'No matching distribution found for a-project==1.3' in str(info.value)
  assert 'pip download --no-deps a-project==1.3' in str(info.value)
  assert '\n' not in str(info.value)


def test_no_network(index, monkeypatch):
  monkeypatch.delenv('PIP_NO_INDEX')
  monkeypatch.delenv('PIP_FIND_LINKS')
  monkeypatch.setenv('no_proxy', '127.0.0.1')
  # The discard port of this machine: refused at once, as without a network.
  monkeypatch.setenv('PIP_INDEX_URL', 'http://127.0.0.1:9/simple')
  with pytest.raises(errors.UserError, match='out of reach.*PIP_FIND_LINKS'):
    wheels.read_member('a-project==1.2', 'a_project/file.bin')


def test_no_pip(index, monkeypatch, tmp_path):
  venv.create(tmp_path / 'bare', with_pip=False, symlinks=True)
  monkeypatch.setattr(sys, 'executable', str(tmp_path / 'bare/bin/python'))
  with pytest.raises(errors.UserError, match='has no pip.*-m ensurepip'):
    wheels.read_member('a-project==1.2', 'a_project/file.bin')


def _fake_pip(monkeypatch, returncode, stderr, wheel=None):
  def run(command, **_):
    (folder,) = [
        word.removeprefix('--dest=') for word in command
        if word.startswith('--dest=')
    ]
    assert command[:4] == [sys.executable, '-m', 'pip', 'download']
    assert '--no-deps' in command
    if wheel is not None:
      (pathlib.Path(folder) / 'a-1-py3-none-any.whl').write_bytes(wheel)
    return subprocess.CompletedProcess(command, returncode, '', stderr)

  monkeypatch.setattr(subprocess, 'run', run)


def test_full_disk(monkeypatch):
  _fake_pip(monkeypatch, 1, 'ERROR: [Errno 28] No space left on device\n')
  with pytest.raises(errors.UserError, match='No space left on device; free'):
    wheels.read_member('a==1', 'a/b')


def test_full_disk_before_pip(monkeypatch):
  def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(tempfile, 'mkdtemp', no_space)
  with pytest.raises(errors.UserError, match='No space left on device; free'):
    wheels.read_member('a==1', 'a/b')


def test_broken_off(monkeypatch):
  _fake_pip(monkeypatch, 1, 'error: incomplete-download\n\nhint: retry\n')
  with pytest.raises(errors.UserError, match=r'has \d+ MB free \(TMPDIR'):
    wheels.read_member('a==1', 'a/b')


def test_silent_failure(monkeypatch):
  _fake_pip(monkeypatch, 3, '')
  with pytest.raises(errors.UserError, match='pip gave no reason'):
    wheels.read_member('a==1', 'a/b')


@pytest.mark.parametrize('wheel', [b'', b'<html>a proxy page</html>'])
def test_not_a_wheel(monkeypatch, wheel):
  _fake_pip(monkeypatch, 0, '', wheel)
  with pytest.raises(errors.UserError, match='no readable a/b'):
    wheels.read_member('a==1', 'a/b')
