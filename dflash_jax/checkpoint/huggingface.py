"""Targets from Hugging Face folders: Llama, Qwen2 and Qwen3 in safetensors."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax import errors
from dflash_jax.checkpoint import tensors as tensor_files
from dflash_jax.nn import rotary
from dflash_jax.target import config as target_config
from dflash_jax.target import decoder

# Field -> key of config.json.
_FIELDS = {
    'vocab_size': 'vocab_size',
    'hidden_size': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'num_kv_heads': 'num_key_value_heads',
    'intermediate_size': 'intermediate_size',
    'norm_eps': 'rms_norm_eps',
    'max_length': 'max_position_embeddings',
}
# Key -> the only values with which these models compute what we compute.
_REQUIRED = {
    'hidden_act': ('silu',),
    'attention_bias': (False,),
    'mlp_bias': (False,),
    'use_sliding_window': (False,),
    'quantization_config': (None,),
}
_TENSORS = {
    'model.embed_tokens.weight': ('embedding',),
    'model.norm.weight': ('final_norm', 'scale'),
}
_HEAD = 'lm_head.weight'
_BIASES = {
    f'self_attn.{name}_proj.bias': (name, 'bias') for name in ('q', 'k', 'v')
}


class Model(NamedTuple):
  """A target: its shape, its parameters, and the tokens that end its text."""

  config: target_config.TargetConfig
  params: dict[str, Any]
  eos_ids: tuple[int, ...]


def load(
    directory: str | os.PathLike,
    dtype: jnp.dtype = jnp.float32,
    mesh: jax.sharding.Mesh | None = None,
) -> Model:
  """Reads a target, every tensor accounted for, one at a time.

  Args:
    directory: folder with `config.json` and safetensors, sharded or not.
    dtype: of the parameters.
    mesh: divides the parameters as `parallel` says; None leaves them whole on
      the default device.

  Raises:
    errors.UserError: a file is missing or damaged; the architecture, or a
      setting of it, is not supported; a tensor is unknown, missing, misshapen
      or overflows `dtype`.
  """
  directory = pathlib.Path(directory)
  path = directory / 'config.json'
  raw = tensor_files.read_json(
      path, 'model configuration; give the folder of a model'
  )
  try:
    config = _config(str(path), raw)
  except (TypeError, ValueError, AttributeError) as error:
    raise errors.UserError(
        f'{path}: a value has the wrong type ({error}); fetch it again'
    ) from error
  folder = tensor_files.Folder(directory)
  table = _table(config)
  names = set(folder.names)
  if config.tied_head and _HEAD in names:
    # Some writers store the tied matrix twice.
    names.remove(_HEAD)
    embedding = folder.read('model.embed_tokens.weight')
    if not np.array_equal(folder.read(_HEAD), embedding):
      raise errors.UserError(
          f'{directory}: config.json ties the head to the embedding, yet'
          f' {_HEAD} differs from it; set tie_word_embeddings to false'
      )
  tensor_files.check_names(
      directory, names, table, f'a {raw["model_type"]} model'
  )
  params = tensor_files.assemble(
      directory, table, decoder.parameter_shapes(config), folder.read, dtype,
      mesh,
  )
  return Model(config, params, _eos_ids(directory, raw))


def _config(path: str, raw: Mapping[str, Any]) -> target_config.TargetConfig:
  kind = raw.get('model_type')
  if kind not in ('llama', 'qwen2', 'qwen3'):
    raise errors.UserError(
        f'{path}: model_type is {kind!r}; llama, qwen2 and qwen3 are supported'
    )
  for key, allowed in _REQUIRED.items():
    if raw.get(key, allowed[0]) not in allowed:
      raise errors.UserError(
          f'{path}: {key} is {raw[key]!r}; only {allowed[0]!r} is supported'
      )

  def get(key: str) -> Any:
    if raw.get(key) is None:
      raise errors.UserError(f'{path}: {key} is missing; fetch the file again')
    return raw[key]

  fields = {field: get(key) for field, key in _FIELDS.items()}
  # Qwen3's heads are not a share of its width.
  if kind == 'qwen3' or raw.get('head_dim') is not None:
    head_dim = get('head_dim')
  else:
    head_dim = fields['hidden_size'] // fields['num_heads']
  theta, scaling = rotary.from_hf(raw, path)
  return target_config.TargetConfig(
      **fields,
      head_dim=head_dim,
      rope_theta=theta,
      rope_scaling=scaling,
      tied_head=bool(raw.get('tie_word_embeddings', False)),
      qkv_bias=kind == 'qwen2',
      qk_norm=kind == 'qwen3',
  )


def _eos_ids(
    directory: pathlib.Path, raw: Mapping[str, Any]
) -> tuple[int, ...]:
  """Stop tokens: of generation_config.json, else of config.json."""
  path = directory / 'generation_config.json'
  ids = None
  if path.exists():
    ids = tensor_files.read_json(path, 'generation settings').get(
        'eos_token_id'
    )
  if ids is None:
    ids = raw.get('eos_token_id')
  if ids is None:
    raise errors.UserError(
        f'{directory}: neither generation_config.json nor config.json has an'
        ' eos_token_id; add the token that ends a text'
    )
  return (ids,) if isinstance(ids, int) else tuple(ids)


def _table(
    config: target_config.TargetConfig,
) -> dict[str, tensor_files.Path]:
  table = dict(_TENSORS)
  if not config.tied_head:
    table[_HEAD] = ('head',)
  layer = dict(tensor_files.LAYER)
  if config.qkv_bias:
    layer |= _BIASES
  if config.qk_norm:
    layer |= tensor_files.QK_NORMS
  for index in range(config.num_layers):
    for name, where in layer.items():
      table[f'model.layers.{index}.{name}'] = (f'layers_{index}', *where)
  return table
