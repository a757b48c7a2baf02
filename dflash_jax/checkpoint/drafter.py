"""Drafters in the published layout: `config.json` and `model.safetensors`."""

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import initialize

# Published name -> path in the parameters of `drafter.model.Drafter`. Weights
# are `[out, in]` on both sides.
_TENSORS = {
    'fc.weight': ('fc', 'kernel'),
    'hidden_norm.weight': ('context_norm', 'scale'),
    'norm.weight': ('final_norm', 'scale'),
}
_LAYER_TENSORS = {
    'input_layernorm.weight': ('attention_norm', 'scale'),
    'post_attention_layernorm.weight': ('mlp_norm', 'scale'),
    'self_attn.q_proj.weight': ('q', 'kernel'),
    'self_attn.k_proj.weight': ('k', 'kernel'),
    'self_attn.v_proj.weight': ('v', 'kernel'),
    'self_attn.o_proj.weight': ('o', 'kernel'),
    'self_attn.q_norm.weight': ('q_norm', 'scale'),
    'self_attn.k_norm.weight': ('k_norm', 'scale'),
    'mlp.gate_proj.weight': ('gate', 'kernel'),
    'mlp.up_proj.weight': ('up', 'kernel'),
    'mlp.down_proj.weight': ('down', 'kernel'),
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
  """
  tensors = {}
  for name, where in _table(config.num_layers).items():
    value = params
    for key in where:
      value = value[key]
    tensors[name] = np.asarray(value)
  text = json.dumps(
      config.to_hf() | {'dtype': str(tensors['fc.weight'].dtype)}, indent=2
  )
  with files.atomic_dir(directory) as folder:
    (folder / 'config.json').write_text(text + '\n')
    safetensors.numpy.save_file(
        tensors, folder / 'model.safetensors', metadata={'format': 'pt'}
    )


def load(
    directory: str | os.PathLike, dtype: jnp.dtype = jnp.float32
) -> tuple[drafter_config.DrafterConfig, dict[str, Any]]:
  """Reads a drafter, every tensor accounted for.

  Args:
    directory: folder with `config.json` and `model.safetensors`.
    dtype: of the parameters; float16 is refused, as drafters overflow it.

  Raises:
    errors.UserError: a file is missing or damaged; a key is missing; a tensor
      is unknown, missing or misshapen.
  """
  if dtype == jnp.float16:
    raise errors.UserError('a drafter runs in float32 or bfloat16, not float16')
  directory = pathlib.Path(directory)
  path = directory / 'config.json'
  try:
    raw = json.loads(path.read_text())
    if not isinstance(raw, dict):
      raise ValueError('not a JSON object')
  except (OSError, ValueError) as error:
    raise errors.UserError(
        f'{path}: no readable drafter configuration ({error}); give the folder'
        ' of a trained drafter'
    ) from error
  try:
    config = drafter_config.DrafterConfig.from_hf(raw, str(path))
  except (TypeError, AttributeError) as error:
    raise errors.UserError(
        f'{path}: a value has the wrong type ({error}); compare it with a'
        ' published config.json'
    ) from error
  path = directory / 'model.safetensors'
  try:
    tensors = safetensors.numpy.load_file(path)
  except (OSError, safetensors.SafetensorError) as error:
    raise errors.UserError(
        f'{path}: cannot be read ({error}); fetch or write it again'
    ) from error
  return config, _params(path, config, tensors, dtype)


def _params(path, config, tensors, dtype):
  table = _table(config.num_layers)
  unknown = sorted(set(tensors) - set(table))
  missing = sorted(set(table) - set(tensors))
  if unknown or missing:
    raise errors.UserError(
        f'{path}: not the {len(table)} tensors of a {config.num_layers}-layer'
        f' DFlash drafter (unknown: {unknown or "none"}; missing:'
        f' {missing or "none"})'
    )
  shapes = jax.eval_shape(
      lambda key: initialize.from_scratch(config, key), jax.random.key(0)
  )
  params: dict[str, Any] = {}
  for name, where in table.items():
    node, shape = params, shapes
    for key in where[:-1]:
      node, shape = node.setdefault(key, {}), shape[key]
    expected = shape[where[-1]].shape
    if tensors[name].shape != expected:
      raise errors.UserError(
          f'{path}: {name} has shape {tensors[name].shape}, config.json implies'
          f' {expected}'
      )
    node[where[-1]] = jnp.asarray(tensors[name], dtype)
  return params


def _table(num_layers: int) -> dict[str, tuple[str, ...]]:
  table = dict(_TENSORS)
  for index in range(num_layers):
    for name, where in _LAYER_TENSORS.items():
      table[f'layers.{index}.{name}'] = (f'layers_{index}', *where)
  return table
