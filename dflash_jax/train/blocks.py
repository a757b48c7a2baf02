"""Random anchors, and the blocks to fill behind them (paper, section 4.2)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dflash_jax.typing import typed


@typed
def sample_anchors(
    key: Key[Array, ''],
    lengths: Int[Array, 'B'],
    prompt_lengths: Int[Array, 'B'],
    max_length: int,
    num_anchors: int,
) -> tuple[Int[Array, 'B A'], Bool[Array, 'B A']]:
  """Draws anchors of each sequence uniformly, without replacement.

  An anchor is a response token that another one follows, as in decoding: the
  first anchor is the first response token.

  Args:
    key: randomness.
    lengths: tokens of each sequence, prompt included.
    prompt_lengths: prompt tokens of each.
    max_length: padded length S of the sequences.
    num_anchors: anchors drawn for each sequence; A is that, or S if less.

  Returns:
    Positions, and which of them are real: a short response has fewer.
  """
  positions = jnp.arange(max_length)[None]
  allowed = (positions >= prompt_lengths[:, None]) & (
      positions < lengths[:, None] - 1
  )
  scores = jax.random.uniform(key, allowed.shape)
  scores = jnp.where(allowed, scores, -1.0)
  scores, anchors = jax.lax.top_k(scores, min(num_anchors, max_length))
  return anchors, scores >= 0


@typed
def labels(
    tokens: Int[Array, 'B S'],
    lengths: Int[Array, 'B'],
    anchors: Int[Array, 'B A'],
    block_size: int,
) -> tuple[Int[Array, 'B A slots'], Bool[Array, 'B A slots']]:
  """What slots `1 .. L-1` of each block should say: the tokens at their place.

  Returns:
    Labels, and which of them exist (the text may end inside a block).
  """
  offsets = jnp.arange(1, block_size)[None, None]
  positions = anchors[:, :, None] + offsets
  exists = positions < lengths[:, None, None]
  return take(tokens, jnp.minimum(positions, tokens.shape[1] - 1)), exists


@typed
def decay_weights(block_size: int, gamma: float) -> Float[Array, 'slots']:
  """`exp(-(k-1) / gamma)` for slots k = 1 .. L-1 (paper, appendix A.1)."""
  return jnp.exp(-jnp.arange(block_size - 1) / gamma)


def take(rows: jax.Array, positions: jax.Array) -> jax.Array:
  """`rows[b, positions[b, ...]]` for `[B, S, ...]` rows."""
  return jax.vmap(lambda row, where: row[where])(rows, positions)
