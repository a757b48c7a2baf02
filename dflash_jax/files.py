"""Writes that either happen completely or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from dflash_jax import errors


def atomic_write(path: str | os.PathLike, data: str | bytes) -> None:
  """Writes `data` to `path` so that a reader never sees half of it.

  The bytes go to a temporary file beside `path`, are flushed to disk, and take
  the name by a rename.

  Args:
    path: file to write; its folder is created.
    data: text (written as UTF-8) or bytes.

  Raises:
    errors.UserError: the folder cannot be written or the disk is full.
  """
  path = pathlib.Path(path)
  if isinstance(data, str):
    data = data.encode()
  temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open('wb') as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as error:
    with contextlib.suppress(OSError):
      temporary.unlink()
    raise unwritable(path, error) from error


@contextlib.contextmanager
def atomic_dir(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Yields a temporary folder that becomes `path` when the block succeeds.

  An existing `path` is replaced only then; on failure nothing is left behind.

  Raises:
    errors.UserError: the folder cannot be written or the disk is full.
  """
  path = pathlib.Path(path)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
  try:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    shutil.rmtree(path, ignore_errors=True)
    os.replace(temporary, path)
  except OSError as error:
    raise unwritable(path, error) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def unwritable(path: str | os.PathLike, error: OSError) -> errors.UserError:
  """The `UserError` for an `OSError` met while writing `path`."""
  return errors.UserError(
      f'cannot write {path}: {error.strerror or error}; free some space or'
      ' choose another folder (--workdir)'
  )
