"""Key-value cache with one slot a position, and a length for each row.

Slot s of a row always holds position s. Slots at or after `length` hold
garbage that the mask never shows, so rolling back is setting `length`.
"""

import einops
from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dflash_jax.typing import typed


@struct.dataclass
class KVCache:
  """Keys and values of every layer.

  Attributes:
    keys: one `[B * M, H, S]` array a layer, rotated. Slots come last, so that
      scores are a product of two plain matrices; on CPU this is twice as fast
      for large batches. Rows and heads share an axis: around a row axis of
      size 1, XLA's CPU back end copies the whole cache at every write.
    values: one `[B * M, S, H]` array a layer.
    length: committed slots of each row, int32 `[B]`.
  """

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]
  length: jax.Array

  @classmethod
  def create(
      cls,
      num_layers: int,
      batch: int,
      capacity: int,
      num_kv_heads: int,
      head_dim: int,
      dtype: jnp.dtype = jnp.float32,
  ) -> 'KVCache':
    """An empty cache of `capacity` slots."""
    def blank(*shape: int) -> tuple[jax.Array, ...]:
      shape = (batch * num_kv_heads, *shape)
      return tuple(jnp.zeros(shape, dtype) for _ in range(num_layers))

    return cls(
        blank(head_dim, capacity),
        blank(capacity, head_dim),
        jnp.zeros((batch,), jnp.int32),
    )

  @property
  def capacity(self) -> int:
    return self.keys[0].shape[2]


@typed
def key_slots(new: Float[Array, 'B T M H']) -> Float[Array, 'BM H T']:
  """Keys of consecutive positions in the layout of the cache."""
  return einops.rearrange(new, 'B T M H -> (B M) H T')


@typed
def value_slots(new: Float[Array, 'B T M H']) -> Float[Array, 'BM T H']:
  """Values of consecutive positions in the layout of the cache."""
  return einops.rearrange(new, 'B T M H -> (B M) T H')


@typed
def write(
    cache: KVCache,
    layer: int,
    keys: Float[Array, 'B T M H'],
    values: Float[Array, 'B T M H'],
) -> tuple[Float[Array, 'BM H S'], Float[Array, 'BM S H']]:
  """A layer's slots with new ones behind each row's length, in place."""
  start = jnp.repeat(cache.length, keys.shape[2])
  keys = key_slots(keys).astype(cache.keys[layer].dtype)
  values = value_slots(values).astype(cache.values[layer].dtype)

  def write_head(key_slots, value_slots, keys, values, start):
    return (
        jax.lax.dynamic_update_slice(key_slots, keys, (0, start)),
        jax.lax.dynamic_update_slice(value_slots, values, (start, 0)),
    )

  return jax.vmap(write_head)(
      cache.keys[layer], cache.values[layer], keys, values, start
  )
