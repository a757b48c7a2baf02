"""Drafters' folders: `config.json` and `model.safetensors`.

Written in the published layout; read in that, in speculators' and in the Muse
assistant's.
"""

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.checkpoint import tensors as tensor_files
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import formats
from dflash_jax.drafter import initialize

# Published name -> path in the parameters of `drafter.model.Drafter`. Weights
# are `[out, in]` on both sides.
_TENSORS = {
    'fc.weight': ('fc', 'kernel'),
    'hidden_norm.weight': ('context_norm', 'scale'),
    'norm.weight': ('final_norm', 'scale'),
}
_CONV_TENSORS = {
    f'{conv}.{name}': (conv, leaf)
    for conv in ('attention_conv', 'mlp_conv')
    for name, leaf in (
        ('base_kernel', 'base_kernel'),
        ('kernel_projection.weight', 'kernel_projection'),
    )
}
_SELECTOR = 'candidate_selector.'
_SELECTOR_TENSORS = {
    'hidden_projection.weight': 'hidden_projection',
    'predecessor_codebook': 'predecessor_codebook',
    'successor_codebook': 'successor_codebook',
}
_PROJECTED_TENSORS = {
    'hidden_projection.weight': 'hidden_projection',
    'predecessor_projection.weight': 'predecessor_projection',
    'successor_projection.weight': 'successor_projection',
}
# Of speculators: the drafter's head, and for each of its rows how far the
# target's id is above the row's.
_HEAD, _OFFSETS = 'lm_head.weight', 'd2t'
_HEAD_TENSORS = {_HEAD: ('head', 'kernel'), _OFFSETS: ('head_ids',)}
# The same mapping once more, as a mask over the target's vocabulary.
_CHOSEN = 't2d'
# Copies of the target's own tensors in speculators' files.
_BORROWED = {
    'embed_tokens.weight', 'verifier_norm.weight', 'verifier_lm_head.weight'
}
# What other writers call the same tensors.
_ALIASES = {
    'candidate_selector.predecessor_codebook.weight':
        'candidate_selector.predecessor_codebook',
    'candidate_selector.successor_codebook.weight':
        'candidate_selector.successor_codebook',
    # The Muse assistant.
    'encoder.fc.weight': 'fc.weight',
    'encoder.output_norm_enc.weight': 'hidden_norm.weight',
}


def save(
    directory: str | os.PathLike,
    config: drafter_config.DrafterConfig,
    params: Mapping[str, Any],
) -> None:
  """Writes the drafter, replacing `directory` as a whole.

  Args:
    directory: folder to make.
    config: of the drafter.
    params: of `drafter.model.Drafter`, in the dtype to store.

  Raises:
    errors.UserError: the drafter has a head of its own, or the folder cannot be
      written.
  """
  if config.draft_vocab_size is not None:
    raise errors.UserError(
        f'{directory}: the drafter has a head of its own, for which the'
        ' published layout has no place; serve the files that it came in (vLLM'
        ' reads them)'
    )
  tensors = tensor_files.flatten(_table(config), params)
  text = json.dumps(
      config.to_hf() | {'dtype': str(tensors['fc.weight'].dtype)}, indent=2
  )
  with files.atomic_dir(directory) as folder:
    (folder / 'config.json').write_text(text + '\n')
    safetensors.numpy.save_file(
        tensors, folder / 'model.safetensors', metadata={'format': 'pt'}
    )


def load(
    directory: str | os.PathLike,
    dtype: jnp.dtype = jnp.float32,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[drafter_config.DrafterConfig, dict[str, Any]]:
  """Reads a drafter, every tensor accounted for.

  Args:
    directory: folder with `config.json` and `model.safetensors`.
    dtype: of the parameters; float16 is refused, as drafters overflow it.
    mesh: divides the parameters as `parallel` says; None leaves them whole on
      the default device.

  Raises:
    errors.UserError: a file is missing or damaged; a key is missing; a tensor
      is unknown, missing, misshapen or there twice.
  """
  if dtype == jnp.float16:
    raise errors.UserError('a drafter runs in float32 or bfloat16, not float16')
  directory = pathlib.Path(directory)
  path = directory / 'config.json'
  raw = tensor_files.read_json(
      path, 'drafter configuration; give the folder of a trained drafter'
  )
  try:
    config = drafter_config.DrafterConfig.from_hf(
        formats.published(raw, str(path)), str(path)
    )
  except (TypeError, AttributeError) as error:
    raise errors.UserError(
        f'{path}: a value has the wrong type ({error}); compare it with a'
        ' published config.json'
    ) from error
  folder = tensor_files.Folder(directory)
  stored: dict[str, str] = {}
  names = set(folder.names)
  if config.draft_vocab_size is not None:
    names -= _BORROWED | {_CHOSEN}
  for name in sorted(names):
    ours = _ALIASES.get(name, name)
    if ours in stored:
      raise errors.UserError(
          f'{directory}: holds both {stored[ours]} and {name}, which are the'
          ' same; keep one'
      )
    stored[ours] = name
  table = _table(config)
  if config.draft_vocab_size == config.vocab_size:
    # A head over the whole vocabulary needs no mapping.
    stored.setdefault(_OFFSETS, '')
  tensor_files.check_names(
      directory, stored, table, f'a {config.num_layers}-layer'
      f' {"DFlash" if config.selector_rank is None else "DFlash 2"} drafter',
  )
  shapes = jax.eval_shape(
      lambda key: initialize.from_scratch(config, key), jax.random.key(0)
  )

  def read(name: str) -> np.ndarray:
    if name == _OFFSETS:
      return _head_ids(folder, config)
    return folder.read(stored[name])

  return config, tensor_files.assemble(
      directory, table, shapes, read, dtype, mesh
  )


def _head_ids(
    folder: tensor_files.Folder, config: drafter_config.DrafterConfig
) -> np.ndarray:
  """The target's token of each row of the drafter's head."""
  rows = np.arange(config.draft_vocab_size)
  ids = rows
  if _OFFSETS in folder.names:
    offsets = folder.read(_OFFSETS)
    if offsets.shape != rows.shape or offsets.dtype.kind != 'i':
      raise errors.UserError(
          f'{folder.path}: {_OFFSETS} is {offsets.dtype} of shape'
          f' {offsets.shape}; it must hold an integer for each of'
          f' {config.draft_vocab_size} draft tokens'
      )
    ids = rows + offsets
  if ids[0] < 0 or ids[-1] >= config.vocab_size or (np.diff(ids) <= 0).any():
    raise errors.UserError(
        f'{folder.path}: {_OFFSETS} does not lead to rising token ids below'
        f' {config.vocab_size}; convert the drafter again'
    )
  if _CHOSEN in folder.names:
    chosen = np.flatnonzero(folder.read(_CHOSEN))
    if not np.array_equal(chosen, ids):
      raise errors.UserError(
          f'{folder.path}: {_CHOSEN} and {_OFFSETS} name different tokens;'
          ' convert the drafter again'
      )
  return ids.astype(np.int32)


def _table(
    config: drafter_config.DrafterConfig,
) -> dict[str, tensor_files.Path]:
  table: dict[str, tensor_files.Path] = dict(_TENSORS)
  if config.draft_vocab_size is not None:
    table |= _HEAD_TENSORS
  layer = tensor_files.LAYER | tensor_files.QK_NORMS
  if config.conv_kernel_size is not None:
    layer |= _CONV_TENSORS
  for index in range(config.num_layers):
    for name, where in layer.items():
      table[f'layers.{index}.{name}'] = (f'layers_{index}', *where)
  if config.selector_rank is not None:
    selector = (
        _PROJECTED_TENSORS if config.selector_projected else _SELECTOR_TENSORS
    )
    for name, leaf in selector.items():
      table[_SELECTOR + name] = ('selector', leaf)
  return table
