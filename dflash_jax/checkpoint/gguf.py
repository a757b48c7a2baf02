"""Target models from GGUF files, every tensor accounted for."""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np

from dflash_jax import errors
from dflash_jax.checkpoint import tensors as tensor_files
from dflash_jax.target import config as target_config
from dflash_jax.target import decoder

# GGUF name within a block -> path of the parameter within a layer.
_BLOCK_TENSORS = {
    'attn_norm.weight': ('attention_norm', 'scale'),
    'attn_q.weight': ('q', 'kernel'),
    'attn_k.weight': ('k', 'kernel'),
    'attn_v.weight': ('v', 'kernel'),
    'attn_output.weight': ('o', 'kernel'),
    'ffn_norm.weight': ('mlp_norm', 'scale'),
    'ffn_gate.weight': ('gate', 'kernel'),
    'ffn_up.weight': ('up', 'kernel'),
    'ffn_down.weight': ('down', 'kernel'),
}


@dataclasses.dataclass(frozen=True)
class GGUFModel:
  """A target read from a GGUF file.

  Attributes:
    config: shape of the model.
    params: the parameters of `target.decoder.Decoder`.
    metadata: every key of the file's header, as plain Python values; the
      tokenizer is made from it.
  """

  config: target_config.TargetConfig
  params: dict[str, Any]
  metadata: dict[str, Any]


def load(path: str | os.PathLike, dtype: jnp.dtype = jnp.float32) -> GGUFModel:
  """Reads a Llama-architecture GGUF file, dequantised to `dtype`.

  Args:
    path: a `.gguf` file of one piece.
    dtype: of the parameters.

  Raises:
    errors.UserError: the file is missing, cut off or not GGUF; the
      architecture is another; a tensor is unknown, missing or misshapen.
  """
  path = pathlib.Path(path)
  reader = _open(path)
  metadata = {
      key: field.contents()
      for key, field in reader.fields.items()
      if not key.startswith('GGUF.')
  }
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  config = _config(path, metadata, tied_head='output.weight' not in tensors)
  table = _table(config)
  tensor_files.check_names(path, tensors, table, 'this architecture')

  def read(name: str) -> np.ndarray:
    value = _dequantize(path, tensors[name])
    if table[name][-2:] in (('q', 'kernel'), ('k', 'kernel')):
      # A misshapen one is for `assemble` to refuse.
      if value.ndim == 2 and len(value) % config.head_dim == 0:
        value = _unpermute(value, config.head_dim)
    return value

  shapes = decoder.parameter_shapes(config)
  params = tensor_files.assemble(path, table, shapes, read, dtype)
  return GGUFModel(config, params, metadata)


def _open(path: pathlib.Path) -> gguf.GGUFReader:
  if not path.is_file():
    raise errors.UserError(f'{path}: no such file; give the path of a .gguf')
  try:
    reader = gguf.GGUFReader(path)
    end = max(t.data_offset + t.n_bytes for t in reader.tensors)
  except Exception as error:  # The reader fails in many ways on a bad file.
    raise errors.UserError(
        f'{path}: cannot be read as GGUF ({type(error).__name__}: {error});'
        ' the file is cut off or of another kind, fetch it again'
    ) from error
  size = path.stat().st_size
  if end > size:
    raise errors.UserError(
        f'{path}: cut off, {size} bytes of at least {end}; fetch it again'
    )
  return reader


def _config(
    path: pathlib.Path, metadata: Mapping[str, Any], tied_head: bool
) -> target_config.TargetConfig:
  architecture = metadata.get('general.architecture')
  if architecture != 'llama':
    raise errors.UserError(
        f'{path}: general.architecture is {architecture!r}; only llama is'
        ' supported in GGUF'
    )

  def field(key: str, prefix: str = 'llama.') -> Any:
    if prefix + key not in metadata:
      raise errors.UserError(
          f'{path}: the header has no {prefix}{key}; convert the model again'
      )
    return metadata[prefix + key]

  scaling = metadata.get('llama.rope.scaling.type', 'none')
  if scaling != 'none':
    raise errors.UserError(
        f'{path}: llama.rope.scaling.type {scaling!r} is not supported'
    )
  num_heads = int(field('attention.head_count'))
  hidden_size = int(field('embedding_length'))
  head_dim = int(
      metadata.get('llama.attention.key_length', hidden_size // num_heads)
  )
  rotary_dim = int(metadata.get('llama.rope.dimension_count', head_dim))
  if rotary_dim != head_dim:
    raise errors.UserError(
        f'{path}: llama.rope.dimension_count {rotary_dim} is not the head'
        f' width {head_dim}; partial rotary is not supported'
    )
  return target_config.TargetConfig(
      vocab_size=len(field('tokenizer.ggml.tokens', prefix='')),
      hidden_size=hidden_size,
      num_layers=int(field('block_count')),
      num_heads=num_heads,
      num_kv_heads=int(field('attention.head_count_kv')),
      head_dim=head_dim,
      intermediate_size=int(field('feed_forward_length')),
      norm_eps=float(field('attention.layer_norm_rms_epsilon')),
      rope_theta=float(metadata.get('llama.rope.freq_base', 10000.0)),
      max_length=int(field('context_length')),
      tied_head=tied_head,
  )


def _table(
    config: target_config.TargetConfig,
) -> dict[str, tensor_files.Path]:
  """GGUF tensor name -> parameter path."""
  table = {
      'token_embd.weight': ('embedding',),
      'output_norm.weight': ('final_norm', 'scale'),
  }
  if not config.tied_head:
    table['output.weight'] = ('head',)
  for index in range(config.num_layers):
    for name, where in _BLOCK_TENSORS.items():
      table[f'blk.{index}.{name}'] = (f'layers_{index}', *where)
  return table


def _dequantize(path: pathlib.Path, tensor: gguf.ReaderTensor) -> np.ndarray:
  try:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)
  except NotImplementedError as error:
    raise errors.UserError(
        f'{path}: tensor {tensor.name} is stored as'
        f' {tensor.tensor_type.name}, which cannot be dequantised; convert the'
        ' model to Q8_0 or F16'
    ) from error


def _unpermute(kernel: np.ndarray, head_dim: int) -> np.ndarray:
  """GGUF stores llama q and k rows for interleaved rotary; undo that.

  Within a head, row `2i + j` there is row `j * H/2 + i` of the rotate-half
  layout that `nn.rotary` uses.
  """
  heads = kernel.reshape(-1, head_dim // 2, 2, kernel.shape[1])
  return heads.swapaxes(1, 2).reshape(kernel.shape)
