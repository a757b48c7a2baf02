"""Python's own standard library as a corpus of source files."""

import hashlib
import pathlib
import sysconfig
import tokenize
from collections.abc import Sequence

from dflash_jax import errors

_SKIPPED_FOLDERS = frozenset({
    'test', 'tests', 'idlelib', 'lib2to3', 'encodings', 'site-packages',
    'dist-packages', '__pycache__',
})


def sources() -> list[tuple[str, str]]:
  """Returns (name, text) of the library's Python files, sorted by name.

  Names are relative to the library, with forward slashes. Test suites,
  idlelib, lib2to3, installed packages, `encodings` (tables of characters) and
  the build settings of this one machine (`_sysconfigdata*`) are left out.

  Raises:
    errors.UserError: this Python comes without sources.
  """
  root = pathlib.Path(sysconfig.get_path('stdlib'))
  found = []
  for path in root.rglob('*.py'):
    name = path.relative_to(root)
    if _SKIPPED_FOLDERS.isdisjoint(name.parts) and not name.name.startswith(
        '_sysconfigdata'
    ):
      with tokenize.open(path) as file:
        found.append((name.as_posix(), file.read()))
  if not found:
    raise errors.UserError(
        f'there are no Python sources in {root}; use a Python that has its'
        ' standard library as files'
    )
  return sorted(found)


def split(
    sources: Sequence[tuple[str, str]], heldout_fraction: float
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
  """Splits files into those to train on and those held out.

  A file's side depends on its name alone, so it stays when others come or go.

  Args:
    sources: (name, text) pairs.
    heldout_fraction: expected share of files to hold out, between 0 and 1.

  Returns:
    The files to train on and the files held out, in the order given.

  Raises:
    errors.UserError: the fraction is out of range, or leaves a side empty.
  """
  if not 0 < heldout_fraction < 1:
    raise errors.UserError(
        f'heldout_fraction must lie between 0 and 1, not {heldout_fraction}'
    )
  sides = ([], [])
  for name, text in sources:
    digest = hashlib.sha256(name.encode()).digest()
    share = int.from_bytes(digest[:8], 'big') / 2**64
    sides[share < heldout_fraction].append((name, text))
  if not all(sides):
    raise errors.UserError(
        f'heldout_fraction {heldout_fraction} leaves no file on one side of'
        f' the split of {len(sources)}; choose one nearer to 0.5'
    )
  return sides
