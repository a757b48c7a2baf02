"""Rotary position embedding, rotate-half form (Su et al., arXiv 2104.09864)."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax import errors
from dflash_jax.typing import typed


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
  """How Llama 3.1 stretches its rotary frequencies past its first context.

  Wavelengths above `original_length / low_frequency_factor` are stretched by
  `factor`, those below `original_length / high_frequency_factor` stay, and
  those between are blended.
  """

  factor: float
  low_frequency_factor: float
  high_frequency_factor: float
  original_length: int


# Field -> key of a published `rope_scaling`.
_KEYS = {
    'factor': 'factor',
    'low_frequency_factor': 'low_freq_factor',
    'high_frequency_factor': 'high_freq_factor',
    'original_length': 'original_max_position_embeddings',
}


def from_hf(
    raw: Mapping[str, Any], source: str
) -> tuple[float, Llama3Scaling | None]:
  """Base and scaling out of a published `config.json`.

  Newer files nest both in `rope_parameters`, older ones only the scaling, in
  `rope_scaling`.

  Args:
    raw: the parsed file.
    source: its path, for messages.

  Raises:
    errors.UserError: a key is missing, or the scaling is another one.
  """
  rope = raw.get('rope_parameters') or raw.get('rope_scaling') or {}
  thetas = {
      place['rope_theta'] for place in (rope, raw)
      if place.get('rope_theta') is not None
  }
  if not thetas:
    raise errors.UserError(f'{source}: rope_theta is missing; add it')
  if len(thetas) > 1:
    raise errors.UserError(
        f'{source}: rope_theta is {sorted(thetas)} in different places; keep one'
    )
  theta = thetas.pop()
  part = rope.get('partial_rotary_factor', raw.get('partial_rotary_factor', 1))
  if part != 1:
    raise errors.UserError(
        f'{source}: partial_rotary_factor is {part}; only heads that rotate as a'
        ' whole are supported'
    )
  kind = rope.get('rope_type', rope.get('type', 'default'))
  if kind == 'default':
    return float(theta), None
  if kind != 'llama3':
    raise errors.UserError(
        f'{source}: rope_type is {kind!r}; only llama3 scaling is supported'
    )
  if missing := [key for key in _KEYS.values() if key not in rope]:
    raise errors.UserError(
        f'{source}: the llama3 rope scaling has no {", ".join(missing)}; add it'
    )
  return float(theta), Llama3Scaling(*(rope[key] for key in _KEYS.values()))


def to_hf(scaling: Llama3Scaling | None) -> dict[str, Any] | None:
  """The published `rope_scaling`."""
  if scaling is None:
    return None
  fields = {key: getattr(scaling, field) for field, key in _KEYS.items()}
  return {'rope_type': 'llama3', **fields}


@typed
def angles(
    positions: Int[Array, '*rows'],
    head_dim: int,
    theta: float,
    scaling: Llama3Scaling | None = None,
) -> Float[Array, '*rows half']:
  """Rotation angle of each feature pair, float32: `position * theta^(-2i/H)`."""
  exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
  frequency = theta ** -exponent
  if scaling is not None:
    turns = scaling.original_length * frequency / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    frequency *= kept + (1 - kept) / scaling.factor
  return positions[..., None].astype(jnp.float32) * jnp.broadcast_to(
      frequency, (*positions.shape, head_dim // 2)
  )


@typed
def rotate(
    x: Float[Array, '*rows N H'], angle: Float[Array, '*rows half']
) -> Float[Array, '*rows N H']:
  """Rotates feature `i` together with feature `i + H/2` by `angle[i]`."""
  cos = jnp.cos(angle)[..., None, :]
  sin = jnp.sin(angle)[..., None, :]
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = (first * cos - second * sin, second * cos + first * sin)
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
