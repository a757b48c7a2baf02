"""Random numbers that depend on nothing but what they are for.

Every draw has a key of its own, made of seed, request, absolute position and
purpose. So a request gets the same in any batch, and no two decisions share
noise, which is where lossless sampling most often goes wrong.
"""

import enum

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.typing import typed


class Purpose(enum.IntEnum):
  """What a draw decides."""

  DRAFT = 0
  ACCEPT = 1
  REPLACE = 2
  # The token of a position, whoever asks: draft and target in coupled sampling.
  TOKEN = 3


@struct.dataclass
class Noise:
  """Draws of one round.

  Attributes:
    keys: of seed and request, `[B]`.
    anchor: absolute position of each row's slot 0, int32 `[B]`. No two rounds
      of a row have the same, so a position that is drafted twice gets fresh
      noise: the first draw may have decided whether it was kept.
  """

  keys: jax.Array
  anchor: jax.Array

  def accept(self) -> Float[Array, 'B']:
    """Uniform in [0, 1), for how many drafts to keep."""
    keys = _fold(self.keys, Purpose.ACCEPT, self.anchor)
    return jax.vmap(jax.random.uniform)(keys)

  def replacement(self, size: int) -> Float[Array, 'B V']:
    """Gumbel noise for the token behind the kept drafts."""
    return _gumbel(_fold(self.keys, Purpose.REPLACE, self.anchor), size)

  def draft(self, slots: int, size: int) -> Float[Array, 'B slots V']:
    """Gumbel noise for the drafts."""
    keys = _fold(self.keys, Purpose.DRAFT, self.anchor)
    return _gumbel(_each(keys, jnp.arange(slots)[None]), size)

  def token(self, slots: int, size: int) -> Float[Array, 'B slots V']:
    """Gumbel noise of the tokens at positions `anchor + 1 ..`.

    Of a position, not of a round: whoever draws the token, in a block of any
    size, gets the same.
    """
    positions = self.anchor[:, None] + 1 + jnp.arange(slots)[None]
    keys = jax.vmap(jax.random.fold_in, (0, None))(self.keys, Purpose.TOKEN)
    return _gumbel(_each(keys, positions), size)


@typed
def row_keys(seeds: Int[Array, 'B'], requests: Int[Array, 'B']) -> jax.Array:
  """A key for each request."""
  return jax.vmap(jax.random.fold_in)(
      jax.vmap(jax.random.key)(seeds), requests
  )


def _fold(keys: jax.Array, purpose: Purpose, anchor: jax.Array) -> jax.Array:
  keys = jax.vmap(jax.random.fold_in, (0, None))(keys, purpose)
  return jax.vmap(jax.random.fold_in)(keys, anchor)


def _each(keys: jax.Array, indices: jax.Array) -> jax.Array:
  """`[B]` keys and `[B or 1, n]` indices to `[B, n]` keys."""
  indices = jnp.broadcast_to(indices, (*keys.shape, indices.shape[-1]))
  fold = jax.vmap(jax.random.fold_in, (None, 0))
  return jax.vmap(fold)(keys, indices)


def _gumbel(keys: jax.Array, size: int) -> jax.Array:
  """`[..., size]`, precise in the tail that decides about rare tokens."""
  def draw(key):
    return jax.random.gumbel(key, (size,), mode='high')

  for _ in keys.shape:
    draw = jax.vmap(draw)
  return draw(keys)
