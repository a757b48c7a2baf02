import errno
import os

import pytest

from dflash_jax import errors
from dflash_jax import files


def full_disk(*_):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def listing(folder):
  return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize('data, stored', [
    ('käse\n', 'käse\n'.encode()), (b'\x00\xff', b'\x00\xff'), ('', b''),
])
def test_write_makes_folders_and_replaces(data, stored, tmp_path):
  path = tmp_path / 'a' / 'b' / 'file'
  files.atomic_write(path, 'something longer that was there before')
  files.atomic_write(str(path), data)
  assert path.read_bytes() == stored
  assert listing(path.parent) == ['file']


def test_the_name_is_given_to_a_complete_file(tmp_path, monkeypatch):
  seen = []
  replace = os.replace

  def spy(source, target):
    seen.append((source.read_text(), os.path.exists(target)))
    replace(source, target)

  monkeypatch.setattr(os, 'replace', spy)
  files.atomic_write(tmp_path / 'file', 'all of it')
  assert seen == [('all of it', False)]


def test_others_may_read_what_the_user_lets_them(tmp_path):
  mask = os.umask(0o027)
  try:
    files.atomic_write(tmp_path / 'file', 'x')
    with files.atomic_dir(tmp_path / 'folder'):
      pass
  finally:
    os.umask(mask)
  assert (tmp_path / 'file').stat().st_mode & 0o777 == 0o640
  assert (tmp_path / 'folder').stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize('function', ['fsync', 'replace'])
def test_a_write_that_fails_changes_nothing(function, tmp_path, monkeypatch):
  path = tmp_path / 'file'
  files.atomic_write(path, 'old')
  monkeypatch.setattr(os, function, full_disk)
  with pytest.raises(errors.UserError, match='No space left') as error:
    files.atomic_write(path, 'new')
  assert str(path) in str(error.value)
  assert path.read_text() == 'old' and listing(tmp_path) == ['file']


def test_a_file_where_a_folder_should_be(tmp_path):
  (tmp_path / 'file').write_text('')
  message = 'cannot write .*file/x: File exists; free'
  with pytest.raises(errors.UserError, match=message):
    files.atomic_write(tmp_path / 'file' / 'x', 'new')
  with pytest.raises(errors.UserError, match='cannot write .*file'):
    with files.atomic_dir(tmp_path / 'file'):
      pass
  assert listing(tmp_path) == ['file']


def test_dir_appears_whole_and_replaces(tmp_path):
  path = tmp_path / 'deep' / 'run'
  for name in ('old', 'new'):
    with files.atomic_dir(path) as folder:
      (folder / name).write_text(name)
      assert folder != path and (name == 'old') == (not path.exists())
    assert listing(path) == [name]
    assert listing(path.parent) == ['run']


@pytest.mark.parametrize('error, caught', [
    (ValueError('x'), ValueError),
    (errors.UserError('x'), errors.UserError),
    (KeyboardInterrupt(), KeyboardInterrupt),
    (OSError(errno.ENOSPC, 'No space left'), errors.UserError),
])
def test_a_dir_that_fails_changes_nothing(error, caught, tmp_path):
  path = tmp_path / 'run'
  with files.atomic_dir(path) as folder:
    (folder / 'old').write_text('')
  with pytest.raises(caught):
    with files.atomic_dir(path) as folder:
      (folder / 'new').write_text('')
      raise error
  assert listing(path) == ['old'] and listing(tmp_path) == ['run']
