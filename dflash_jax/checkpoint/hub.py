"""Models by their name on the Hugging Face hub."""

import pathlib
import re

import huggingface_hub

from dflash_jax import errors

# Weights in safetensors, and text: no pickle and no code is fetched.
_PATTERNS = ['*.safetensors', '*.json', '*.jinja']


def find(name: str) -> pathlib.Path:
  """The folder of a model: a local path, or a hub id, fetched once.

  Args:
    name: path of a folder, or `owner/name`.

  Raises:
    errors.UserError: there is no such folder, and the hub cannot give it.
  """
  path = pathlib.Path(name)
  if path.is_dir():
    return path
  if not re.fullmatch(r'[\w.-]+/[\w.-]+', name):
    raise errors.UserError(
        f'{name}: no such folder; give the path of a model, or its owner/name'
        ' on the Hugging Face hub'
    )
  try:
    return pathlib.Path(
        huggingface_hub.snapshot_download(name, allow_patterns=_PATTERNS)
    )
  except Exception as error:  # Many kinds: network, access, a wrong name.
    raise errors.UserError(
        f'{name}: no such folder here, and the Hugging Face hub does not give'
        f' it ({type(error).__name__}: {error}); check the name, the network'
        ' and your access, or download it and give its path'
    ) from error
