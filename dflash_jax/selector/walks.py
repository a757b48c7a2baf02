"""Paths through the pair scores of a block.

Scores are `[..., Z, K, K]`: of candidate b of a slot (last axis) behind
candidate a of the slot before. The first slot's predecessor is the anchor, so
its rows are equal. A path holds the index of one candidate a slot.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.typing import typed


@typed
def greedy(scores: Float[Array, '*rows Z K K']) -> Int[Array, '*rows Z']:
  """The best candidate behind the one just taken, slot by slot."""
  return _follow(jnp.argmax(scores, axis=-1))


@typed
def look_ahead(scores: Float[Array, '*rows Z K K']) -> Int[Array, '*rows Z']:
  """The path of the largest expected accepted length.

  Under the selector's own conditionals `P_k(b | a) = softmax_b s_k(a, b)`, the
  expected number of accepted drafts of the best path behind a is
  `V_k(a) = max_b P_k(b | a) * (1 + V_{k+1}(b))`, with 0 behind the last slot.
  """
  chances = jax.nn.softmax(scores, axis=-1)

  def back(value, chance):
    gain = chance * (1 + value[..., None, :])
    return jnp.max(gain, axis=-1), jnp.argmax(gain, axis=-1)

  _, choices = jax.lax.scan(
      back,
      jnp.zeros_like(scores[..., 0, 0, :]),
      jnp.moveaxis(chances, -3, 0),
      reverse=True,
  )
  return _follow(jnp.moveaxis(choices, 0, -2))


@typed
def sampled(
    log_probs: Float[Array, '*rows Z K K'], gumbel: Float[Array, '*rows Z K']
) -> Int[Array, '*rows Z']:
  """A draw from the conditionals, each behind the candidate just drawn.

  Args:
    log_probs: of each candidate behind each predecessor.
    gumbel: noise of each candidate.
  """
  return _follow(jnp.argmax(log_probs + gumbel[..., None, :], axis=-1))


@typed
def along(
    rows: Float[Array, '*rows Z K K'], path: Int[Array, '*rows Z']
) -> Float[Array, '*rows Z K']:
  """The row of each slot behind the path's candidate in the slot before."""
  before = jnp.concatenate(
      [jnp.zeros_like(path[..., :1]), path[..., :-1]], axis=-1
  )
  return jnp.take_along_axis(rows, before[..., None, None], axis=-2)[..., 0, :]


@typed
def ideal(
    path: Int[Array, '*rows Z'],
    candidates: Int[Array, '*rows Z K'],
    gold: Int[Array, '*rows Z'],
) -> Int[Array, '*rows Z']:
  """`path`, with the gold token wherever it is a candidate (for analysis)."""
  found = candidates == gold[..., None]
  return jnp.where(jnp.any(found, axis=-1), jnp.argmax(found, axis=-1), path)


@typed
def tokens(
    path: Int[Array, '*rows Z'], candidates: Int[Array, '*rows Z K']
) -> Int[Array, '*rows Z']:
  """Token ids along a path."""
  return jnp.take_along_axis(candidates, path[..., None], axis=-1)[..., 0]


def _follow(choices: jax.Array) -> jax.Array:
  """The path through `[..., Z, K]` choices, one for each predecessor."""
  def step(before, choice):
    index = jnp.take_along_axis(choice, before[..., None], axis=-1)[..., 0]
    return index, index

  _, path = jax.lax.scan(
      step,
      jnp.zeros(choices.shape[:-2], choices.dtype),
      jnp.moveaxis(choices, -2, 0),
  )
  return jnp.moveaxis(path, 0, -1)
