"""Rotary position embedding, rotate-half form (Su et al., arXiv 2104.09864)."""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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
