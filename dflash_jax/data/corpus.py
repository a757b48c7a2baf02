"""Corpora on disk: prompts, and the responses of a target, as token ids.

A corpus folder holds
  dataset/       a TFDS dataset of array_record shards, one split `train`;
  manifest.json  what it was made from, counts and hashes; written last, so that
                 a folder without it is not a corpus yet.

Neither writing nor reading needs TensorFlow.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

from jaxtyping import Int32
import numpy as np
import tensorflow_datasets as tfds

from dflash_jax import errors
from dflash_jax import files

EXAMPLES_PER_SHARD = 4096

# What `write` adds to the manifest.
SUMMARY = (
    'num_prompt_tokens',
    'num_response_tokens',
    'num_finished',
    'created',
    'files',
)


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
  """One prompt and the target's response to it, as token ids.

  Attributes:
    id: name of the prompt, unique in its corpus.
    prompt: what the target was given, chat template included.
    response: what the target generated.
    finished: the response ended with a stop token, not with the token budget.
  """

  id: str
  prompt: Int32[np.ndarray, 'n']
  response: Int32[np.ndarray, 'm']
  finished: bool


def write(
    directory: pathlib.Path,
    examples: Sequence[Example],
    origin: Mapping[str, object],
) -> dict:
  """Writes a corpus folder; equal examples give equal dataset files.

  Args:
    directory: the corpus folder.
    examples: at least one.
    origin: what the corpus is made from, for the manifest.

  Returns:
    The manifest: `origin`, `num_prompt_tokens`, `num_response_tokens`,
    `num_finished`, `created` (UTC), and `files`, the sha256 of each file of
    the dataset.

  Raises:
    errors.UserError: the folder cannot be written or the disk is full.
  """
  with files.atomic_dir(directory / 'dataset') as folder:
    _write_dataset(folder, examples)
    paths = sorted(folder.iterdir())
    for path in (*paths, folder):
      _sync(path)
    digests = {path.name: _sha256(path) for path in paths}
  manifest = {
      **origin,
      'num_prompt_tokens': sum(len(e.prompt) for e in examples),
      'num_response_tokens': sum(len(e.response) for e in examples),
      'num_finished': sum(e.finished for e in examples),
      'created': datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds'
      ),
      'files': digests,
  }
  files.atomic_write(
      directory / 'manifest.json', json.dumps(manifest, indent=2) + '\n'
  )
  return manifest


def read(directory: str | os.PathLike) -> tuple[list[Example], dict]:
  """Reads a finished corpus, whole and verified.

  Returns:
    The examples in the order of the prompts, and the manifest.

  Raises:
    errors.UserError: the corpus is missing, unfinished or damaged.
  """
  directory = pathlib.Path(directory)
  manifest = read_manifest(directory)
  if manifest is None:
    raise errors.UserError(
        f'there is no finished corpus in {directory}; run its regenerate stage'
        ' (with the same config and workdir it goes on where it stopped)'
    )
  folder = directory / 'dataset'
  for name, digest in manifest['files'].items():
    if not (folder / name).is_file() or _sha256(folder / name) != digest:
      raise _damaged(folder / name)
  rows = tfds.builder_from_directory(folder).as_data_source('train')
  return [
      Example(
          id=row['id'].decode(),
          prompt=row['prompt'],
          response=row['response'],
          finished=bool(row['finished']),
      )
      for row in rows
  ], manifest


def read_manifest(directory: pathlib.Path) -> dict | None:
  """The manifest of a finished corpus; None if there is none (yet).

  Raises:
    errors.UserError: the file is damaged or may not be read.
  """
  path = directory / 'manifest.json'
  try:
    manifest = json.loads(path.read_bytes())
    manifest['files'].items()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise errors.UserError(f'cannot read {path}: {error.strerror}') from error
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise _damaged(path) from error
  return manifest


def _write_dataset(folder: pathlib.Path, examples: Sequence[Example]) -> None:
  tokens = tfds.features.Tensor(shape=(None,), dtype=np.int32)
  info = tfds.core.DatasetInfo(
      builder=tfds.core.DatasetIdentity(
          name='corpus',
          version=tfds.core.Version('1.0.0'),
          data_dir=os.fspath(folder),
          module_name=__name__,
      ),
      description='Prompts and the responses of a language model, as tokens.',
      features=tfds.features.FeaturesDict({
          'id': tfds.features.Text(),
          'prompt': tokens,
          'response': tokens,
          'finished': tfds.features.Scalar(dtype=np.bool_),
      }),
  )
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=EXAMPLES_PER_SHARD,
      file_format='array_record',
  )
  writer.initialize_splits(['train'])
  try:
    writer.add_examples({'train': map(vars, examples)})
    writer.close_splits(['train'])
  except RuntimeError as error:
    # What array_record raises when the operating system refuses a write.
    raise OSError(str(error)) from error


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _sha256(path: pathlib.Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _damaged(path: pathlib.Path) -> errors.UserError:
  return errors.UserError(
      f'{path} is damaged or missing; delete the corpus folder and run the'
      ' regenerate stage again'
  )
