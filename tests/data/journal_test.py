import errno
import os

import pytest

from dflash_jax import errors
from dflash_jax.data import journal

HEADER = {'target': 'é', 'n': [1, 2]}
RECORDS = [{'a': [1, 2, 3]}, {'a': []}, {'a': ['\n', 'é'], 'b': True}]


def _write(path, records=RECORDS):
  with journal.Journal(path, HEADER) as log:
    for record in records:
      log.append(record)


def _read(path):
  with journal.Journal(path, {'ignored': 1}) as log:
    assert log.header == HEADER
    return log.records


def test_keeps_its_header_and_its_records(tmp_path):
  path = tmp_path / 'j'
  _write(path)
  assert _read(path) == RECORDS
  _write(path, [{'more': 1}])
  assert _read(path) == [*RECORDS, {'more': 1}]


def test_a_torn_last_record_is_cut_at_every_byte(tmp_path):
  path = tmp_path / 'j'
  _write(path, RECORDS[:2])
  whole = path.read_bytes()
  _write(path, RECORDS[2:])
  full = path.read_bytes()
  for end in range(len(whole), len(full)):
    path.write_bytes(full[:end])
    assert _read(path) == RECORDS[:2]
    assert path.read_bytes() == whole
    _write(path, RECORDS[2:])
    assert path.read_bytes() == full


def test_a_last_record_with_a_hole_is_cut(tmp_path):
  path = tmp_path / 'j'
  _write(path)
  full = bytearray(path.read_bytes())
  full[-5] = 0
  path.write_bytes(full)
  assert _read(path) == RECORDS[:2]


@pytest.mark.parametrize('line', [1, 2, 3])
def test_damage_before_the_last_record_is_refused(tmp_path, line):
  path = tmp_path / 'j'
  _write(path)
  lines = path.read_bytes().splitlines(keepends=True)
  lines[line - 1] = lines[line - 1].replace(b'"', b"'", 1)
  path.write_bytes(b''.join(lines))
  with pytest.raises(errors.UserError, match=f'j is damaged in line {line};'):
    _read(path)
  assert path.read_bytes() == b''.join(lines)


@pytest.mark.parametrize('content', [b'', b'\n', b'1234'])
def test_a_file_without_a_header_is_refused(tmp_path, content):
  (tmp_path / 'j').write_bytes(content)
  with pytest.raises(errors.UserError, match='damaged in line 1'):
    _read(tmp_path / 'j')


@pytest.mark.parametrize('call', ['write', 'fsync'])
def test_a_full_disk_leaves_the_records_before(tmp_path, monkeypatch, call):
  path = tmp_path / 'j'
  real = os.write

  def full(descriptor, *data):
    if data:
      real(descriptor, data[0][:5])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with journal.Journal(path, HEADER) as log:
    log.append(RECORDS[0])
    before = path.read_bytes()
    with monkeypatch.context() as patch:
      patch.setattr(os, call, full)
      with pytest.raises(errors.UserError, match='j: No space left on device'):
        log.append(RECORDS[1])
    assert path.read_bytes() == before
    log.append(RECORDS[1])
  assert _read(path) == RECORDS[:2]


def test_short_writes_are_continued(tmp_path, monkeypatch):
  real = os.write
  monkeypatch.setattr(os, 'write', lambda fd, data: real(fd, data[:3]))
  _write(tmp_path / 'j')
  assert _read(tmp_path / 'j') == RECORDS


def test_a_folder_is_held_by_one(tmp_path):
  folder = tmp_path / 'new' / 'folder'
  with journal.exclusive(folder):
    with pytest.raises(errors.UserError, match='by another process'):
      with journal.exclusive(folder):
        pass
  with journal.exclusive(folder):
    pass
