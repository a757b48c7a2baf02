"""An append-only file of JSON records that survives `kill -9`.

Each record is one line: eight hexadecimal digits of CRC-32, a space, JSON. The
first is the header, which is written together with the file's name and so is
never torn; a later one can be torn only if it is the last.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping

from dflash_jax import errors
from dflash_jax import files


class Journal:
  """A journal held open for appending; use it as a context manager.

  Attributes:
    header: the first record, as it was when the journal was created.
    records: the records after the header, oldest first.
  """

  def __init__(self, path: pathlib.Path, header: Mapping[str, object]):
    """Opens the journal at `path` and cuts a torn last record off.

    Args:
      path: the file; created with `header` if it is missing.
      header: JSON-serialisable; an existing journal keeps its own.

    Raises:
      errors.UserError: the file is damaged before its last record, or cannot
        be written.
    """
    if not path.exists():
      files.atomic_write(path, _encode(header))
    self._path = path
    try:
      (self.header, *self.records), self._end = _decode(path)
      self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
      os.ftruncate(self._descriptor, self._end)
    except OSError as error:
      raise files.unwritable(path, error) from error

  def append(self, record: Mapping[str, object]) -> None:
    """Adds `record`; on return it is on the disk.

    Raises:
      errors.UserError: the disk is full or failing; the journal then still
        holds exactly the records before this one.
    """
    line = _encode(record)
    try:
      rest = line
      while rest:
        rest = rest[os.write(self._descriptor, rest):]
      os.fsync(self._descriptor)
    except OSError as error:
      # Should this fail too, the next opening cuts the torn record.
      with contextlib.suppress(OSError):
        os.ftruncate(self._descriptor, self._end)
      raise files.unwritable(self._path, error) from error
    self._end += len(line)
    self.records.append(json.loads(line[9:]))

  def __enter__(self) -> 'Journal':
    return self

  def __exit__(self, *_) -> None:
    os.close(self._descriptor)


@contextlib.contextmanager
def exclusive(folder: pathlib.Path) -> Iterator[None]:
  """Keeps other processes out of `folder` (created if missing) for the block.

  The lock belongs to the process, so that a killed one leaves none behind. Its
  file `.lock` stays: removing it would let two later processes each lock a
  different file of that name.

  Raises:
    errors.UserError: another process holds the folder, or it is unwritable.
  """
  with contextlib.ExitStack() as stack:
    try:
      folder.mkdir(parents=True, exist_ok=True)
      lock = stack.enter_context(open(folder / '.lock', 'wb'))
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise errors.UserError(
          f'{folder} is being written by another process; wait until it ends'
          ' or choose another folder'
      ) from error
    except OSError as error:
      raise files.unwritable(folder, error) from error
    yield


def _encode(record: Mapping[str, object]) -> bytes:
  text = json.dumps(record).encode()
  return b'%08x %s\n' % (zlib.crc32(text), text)


def _decode(path: pathlib.Path) -> tuple[list[dict], int]:
  """All whole records of the file, and the offset at which they end."""
  *lines, tail = path.read_bytes().split(b'\n')
  records, end = [], 0
  for number, line in enumerate(lines, 1):
    text = line[9:]
    if line[:9] != b'%08x ' % zlib.crc32(text):
      if number > 1 and number == len(lines) and not tail:
        break
      raise _damaged(path, number)
    records.append(json.loads(text))
    end += len(line) + 1
  if not records:
    raise _damaged(path, 1)
  return records, end


def _damaged(path: pathlib.Path, number: int) -> errors.UserError:
  return errors.UserError(
      f'{path} is damaged in line {number}; delete the file to start over'
  )
