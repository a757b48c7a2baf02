"""Named tensors of a folder's safetensors files, into a tree of parameters."""

from collections.abc import Callable, Iterable, Mapping
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from dflash_jax import errors
from dflash_jax import parallel

Path = tuple[str, ...]
_SINGLE, _INDEX = 'model.safetensors', 'model.safetensors.index.json'
# Published name within a layer -> path within our layer, of targets and of
# drafters. Weights are `[out, in]` on both sides.
LAYER = {
    'input_layernorm.weight': ('attention_norm', 'scale'),
    'post_attention_layernorm.weight': ('mlp_norm', 'scale'),
    'self_attn.q_proj.weight': ('q', 'kernel'),
    'self_attn.k_proj.weight': ('k', 'kernel'),
    'self_attn.v_proj.weight': ('v', 'kernel'),
    'self_attn.o_proj.weight': ('o', 'kernel'),
    'mlp.gate_proj.weight': ('gate', 'kernel'),
    'mlp.up_proj.weight': ('up', 'kernel'),
    'mlp.down_proj.weight': ('down', 'kernel'),
}
QK_NORMS = {
    f'self_attn.{name}_norm.weight': (f'{name}_norm', 'scale')
    for name in ('q', 'k')
}


class Folder:
  """Reads one tensor at a time, through a memory map.

  Attributes:
    path: the folder.
    names: of all tensors.
  """

  def __init__(self, path: pathlib.Path):
    """Opens `model.safetensors`, or the shards that an index names.

    Raises:
      errors.UserError: there is neither; a shard is missing or damaged; the
        index names a tensor that its shard does not hold.
    """
    self.path = path
    if (path / _INDEX).exists():
      where = _weight_map(path / _INDEX)
      shards = sorted(set(where.values()))
      missing = [name for name in shards if not (path / name).exists()]
      if missing:
        raise errors.UserError(
            f'{path}: {len(missing)} of {len(shards)} shards are missing:'
            f' {", ".join(missing)}; download the rest'
        )
    elif (path / _SINGLE).exists():
      where, shards = None, [_SINGLE]
    else:
      raise errors.UserError(
          f'{path}: no {_SINGLE} and no {_INDEX}; give the folder of a model in'
          ' safetensors (other formats are not read)'
      )
    self._files = {}
    for name in shards:
      try:
        opened = safetensors.safe_open(path / name, framework='np')
      except (OSError, safetensors.SafetensorError) as error:
        raise errors.UserError(
            f'{path / name}: cannot be read ({error}); fetch or write it again'
        ) from error
      for tensor in opened.keys():
        self._files[tensor] = (name, opened)
    for tensor, shard in (where or {}).items():
      if tensor not in self._files:
        raise errors.UserError(
            f'{path / shard}: has no {tensor}, which the index says is there;'
            ' fetch it again'
        )
    self.names = set(self._files)

  def read(self, name: str) -> np.ndarray:
    """The tensor, in its stored dtype."""
    return self._files[name][1].get_tensor(name)


def _weight_map(path: pathlib.Path) -> dict[str, str]:
  try:
    return dict(json.loads(path.read_text())['weight_map'])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.UserError(
        f'{path}: not an index of shards ({error!r}); fetch it again'
    ) from error


def read_json(path: pathlib.Path, what: str) -> dict[str, Any]:
  """The JSON object in a file.

  Raises:
    errors.UserError: the file is missing or holds something else; `what` says
      in the message what was looked for.
  """
  try:
    raw = json.loads(path.read_text())
    if not isinstance(raw, dict):
      raise ValueError('not a JSON object')
  except (OSError, ValueError) as error:
    raise errors.UserError(f'{path}: no readable {what} ({error})') from error
  return raw


def check_names(
    source: Any, found: Iterable[str], expected: Iterable[str], model: str
) -> None:
  """Raises unless exactly the tensors of `model` are there."""
  unknown = sorted(set(found) - set(expected))
  missing = sorted(set(expected) - set(found))
  if unknown or missing:
    raise errors.UserError(
        f'{source}: not the {len(set(expected))} tensors of {model} (unknown:'
        f' {unknown or "none"}; missing: {missing or "none"}); convert the'
        ' model again, or use one that is supported'
    )


def assemble(
    source: Any,
    table: Mapping[str, Path],
    shapes: Mapping[str, Any],
    read: Callable[[str], np.ndarray],
    dtype: jnp.dtype,
    mesh: jax.sharding.Mesh | None = None,
) -> dict[str, Any]:
  """Parameters as a tree, one tensor after the other.

  No more than one tensor is in host memory besides what lies there in the end.

  Args:
    source: file or folder, for messages.
    table: tensor name -> path of the parameter.
    shapes: tree of the expected shapes.
    read: gives the tensor of a name.
    dtype: of the parameters.
    mesh: where they go, see `parallel`; None for the default device.

  Raises:
    errors.UserError: a tensor has another shape, or a value that overflows
      `dtype`.
  """
  params: dict[str, Any] = {}
  for name, where in table.items():
    node, shape = params, shapes
    for key in where[:-1]:
      node, shape = node.setdefault(key, {}), shape[key]
    value, expected = read(name), shape[where[-1]].shape
    if value.shape != expected:
      raise errors.UserError(
          f'{source}: {name} has shape {value.shape}, the configuration implies'
          f' {expected}; one of the two belongs to another model'
      )
    if mesh is None:
      leaf = jnp.asarray(value)
    else:
      # Each device takes its part; the whole is on none of them.
      leaf = jax.make_array_from_callback(
          value.shape, parallel.sharding(mesh, where, value.shape),
          lambda index: value[index],
      )
    leaf = cast(leaf, dtype)
    if dtype == jnp.float16 and not bool(jnp.isfinite(leaf).all()):
      raise errors.UserError(
          f'{source}: {name} overflows float16; load it in float32 or bfloat16'
      )
    node[where[-1]] = leaf
  return params


def cast(leaf: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """The leaf in `dtype`, unless it counts something."""
  return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def flatten(
    table: Mapping[str, Path], params: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """The tensors that `table` names, out of a tree."""
  tensors = {}
  for name, where in table.items():
    value = params
    for key in where:
      value = value[key]
    tensors[name] = np.asarray(jax.device_get(value))
  return tensors
