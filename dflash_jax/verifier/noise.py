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

from dflash_jax.nn import argmax
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

  def replacement(self, log_weights: Float[Array, 'B V']) -> Int[Array, 'B']:
    """The token behind the kept drafts."""
    keys = _fold(self.keys, Purpose.REPLACE, self.anchor)
    return _categorical(keys, log_weights)

  def drafts(self, log_weights: Float[Array, 'B Z V']) -> Int[Array, 'B Z']:
    """Drafts, each slot for itself."""
    return _categorical(self._slots(log_weights.shape[1]), log_weights)

  def walk(self, slots: int, size: int) -> Float[Array, 'B slots K']:
    """Gumbel noise for drafts that depend on the ones before."""
    return _gumbel(self._slots(slots), size)

  def token(self, slots: int, size: int) -> Float[Array, 'B slots V']:
    """Gumbel noise of the tokens at positions `anchor + 1 ..`.

    Of a position, not of a round: whoever draws the token, in a block of any
    size, gets the same.
    """
    positions = self.anchor[:, None] + 1 + jnp.arange(slots)[None]
    keys = jax.vmap(jax.random.fold_in, (0, None))(self.keys, Purpose.TOKEN)
    return _gumbel(_each(keys, positions), size)

  def _slots(self, count):
    keys = _fold(self.keys, Purpose.DRAFT, self.anchor)
    return _each(keys, jnp.arange(count)[None])


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
  """`[...]` keys and `[..., n]` indices to `[..., n]` keys."""
  indices = jnp.broadcast_to(indices, (*keys.shape, indices.shape[-1]))
  fold = jax.vmap(jax.random.fold_in, (None, 0))
  for _ in keys.shape:
    fold = jax.vmap(fold)
  return fold(keys, indices)


def _categorical(keys: jax.Array, log_weights: jax.Array) -> jax.Array:
  """One index of each row, with chances in proportion to the weights.

  First a group of neighbours, then one in it: noise for all of a vocabulary
  would cost more than the rest of the sampling.
  """
  keys = _each(keys, jnp.arange(2)[None])
  grouped = argmax.groups(log_weights)
  of_groups = jax.nn.logsumexp(grouped, axis=-1)
  return argmax.pick(
      grouped,
      of_groups + _gumbel(keys[..., 0], of_groups.shape[-1]),
      _gumbel(keys[..., 1], argmax.GROUP),
  )


def _gumbel(keys: jax.Array, size: int) -> jax.Array:
  """`[..., size]`, precise in the tail that decides about rare tokens."""
  def draw(key):
    return jax.random.gumbel(key, (size,), mode='high')

  for _ in keys.shape:
    draw = jax.vmap(draw)
  return draw(keys)
