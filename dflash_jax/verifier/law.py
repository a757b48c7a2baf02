"""The law that sampling follows: what a request does to the target's logits.

In this order: penalties, temperature, top-k, top-p, min-p; then a softmax, all
in float32. Each filter sees what the one before it left, renormalised, as in
transformers. A cut-off among equal probabilities keeps the lower token ids.
"""

from collections.abc import Callable

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from dflash_jax.typing import typed

# The search for a cut-off first looks at so many groups of so many tokens.
_GROUPS, _GROUP = 64, 128


@struct.dataclass
class Law:
  """Settings of each row; arrays `[B]`.

  Attributes:
    temperature: divides the logits; 0 keeps the best token alone (greedy).
    top_k: keeps so many tokens, int32; 0 keeps all.
    top_p: keeps the fewest tokens, best first, that weigh at least so much
      together; 1 keeps all.
    min_p: keeps tokens with at least this share of the best one's probability;
      0 keeps all.
    repetition_penalty: divides positive logits, and multiplies negative ones,
      of tokens in the prompt or the output; 1 does nothing.
    presence_penalty: taken off the logit of tokens in the output.
    frequency_penalty: taken off once for each time that it is there.
  """

  temperature: jax.Array
  top_k: jax.Array
  top_p: jax.Array
  min_p: jax.Array
  repetition_penalty: jax.Array
  presence_penalty: jax.Array
  frequency_penalty: jax.Array


@typed
def penalise(
    logits: Float[Array, 'B T V'],
    law: Law,
    in_prompt: Bool[Array, 'B V'],
    counts: Int[Array, 'B T V'],
) -> Float[Array, 'B T V']:
  """Logits after the penalties: repetition, then frequency, then presence.

  Args:
    logits: of the target.
    law: settings of each row.
    in_prompt: tokens of the prompt.
    counts: how often each token is in the output before each position.
  """
  repetition, presence, frequency = (
      value[:, None, None] for value in (
          law.repetition_penalty, law.presence_penalty, law.frequency_penalty
      )
  )
  there = counts > 0
  logits = jnp.where(
      there | in_prompt[:, None],
      jnp.where(logits > 0, logits / repetition, logits * repetition),
      logits,
  )
  return logits - frequency * counts - presence * there


@typed
def log_probs(
    logits: Float[Array, 'B T V'], law: Law
) -> Float[Array, 'B T V']:
  """Float32 log-probabilities under the law; -inf where it forbids a token."""
  temperature, top_p, min_p = (
      value[:, None, None] for value in (law.temperature, law.top_p, law.min_p)
  )
  # Greedy is top-1: one door for all temperatures.
  top_k = jnp.where(law.temperature == 0, 1, law.top_k)[:, None, None]
  scaled = logits.astype(jnp.float32) / jnp.where(
      temperature == 0, 1, temperature
  )
  order = _order(scaled)

  def by_count(scaled):
    kept = _keep(order, jnp.ones_like(scaled), top_k.astype(jnp.float32))
    return jnp.where(kept | (top_k == 0), scaled, -jnp.inf)

  def by_mass(scaled):
    wanted = jnp.where(top_p < 1, top_p, 0)
    kept = _keep(order, jax.nn.softmax(scaled, axis=-1), wanted)
    return jnp.where(kept | (top_p >= 1), scaled, -jnp.inf)

  # The searches take many passes; most batches want none.
  scaled = _when(jnp.any(top_k > 0), by_count, scaled)
  scaled = _when(jnp.any(top_p < 1), by_mass, scaled)
  best = jnp.max(scaled, axis=-1, keepdims=True)
  scaled = jnp.where(scaled >= best + jnp.log(min_p), scaled, -jnp.inf)
  return jax.nn.log_softmax(scaled, axis=-1)


def _when(wanted: jax.Array, change: Callable, scaled: jax.Array) -> jax.Array:
  return jax.lax.cond(wanted, change, lambda scaled: scaled, scaled)


def _order(values: jax.Array) -> UInt32[Array, '...']:
  """Integers in the order of the floats."""
  # Zero has two signs and one place.
  values = jnp.where(values == 0, 0.0, values)
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  negative = bits >> 31 == 1
  return jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))


def _keep(
    order: jax.Array, weights: jax.Array, wanted: jax.Array
) -> Bool[Array, '...']:
  """The fewest entries, highest first, whose weights reach `wanted` together.

  All of them if they never do.

  Args:
    order: values to go by; among equal ones the earlier is higher.
    weights: nonnegative, equal where the values are.
    wanted: at least 0.
  """
  floor = _floor(order, weights, wanted)
  above = order > floor
  level = order == floor
  missing = wanted - jnp.sum(
      jnp.where(above, weights, 0), axis=-1, keepdims=True
  )

  def first():
    # Weights in front of each of the equals: the last to be kept has too
    # little.
    ahead = jnp.cumsum(jnp.where(level, weights, 0), axis=-1) - weights
    return level & (ahead < missing)

  # Mostly there is one, or all of them are kept.
  together = jnp.sum(jnp.where(level, weights, 0), axis=-1, keepdims=True)
  alone = jnp.sum(level, axis=-1, keepdims=True) <= 1
  return above | jax.lax.cond(
      jnp.all(alone | (together <= missing)), lambda: level, first
  )


def _floor(
    order: jax.Array, weights: jax.Array, wanted: jax.Array
) -> UInt32[Array, '... 1']:
  """The lowest value that `_keep` keeps, without sorting.

  Mostly it is among the groups of neighbours with the highest members; where
  all that is higher than the rest of the groups does not reach `wanted`, the
  whole vocabulary is searched. Row by row, so that none depends on its batch.
  """
  size = order.shape[-1]
  if size <= 2 * _GROUPS * _GROUP:
    return _search(order, weights, wanted)
  padding = [(0, 0)] * (order.ndim - 1) + [(0, -size % _GROUP)]
  shape = (*order.shape[:-1], -1, _GROUP)
  orders, masses = (
      jnp.pad(values, padding).reshape(shape) for values in (order, weights)
  )
  best, groups = jax.lax.top_k(jnp.max(orders, axis=-1), _GROUPS + 1)
  few, of_few = (
      jnp.take_along_axis(values, groups[..., :-1, None], axis=-2).reshape(
          *order.shape[:-1], -1
      ) for values in (orders, masses)
  )
  above = jnp.where(few > best[..., -1:], of_few, 0)
  enough = jnp.sum(above, axis=-1, keepdims=True) >= wanted
  found = _search(few, of_few, wanted)
  return jax.lax.cond(
      jnp.all(enough),
      lambda: found,
      lambda: jnp.where(enough, found, _search(order, weights, wanted)),
  )


def _search(
    order: jax.Array, weights: jax.Array, wanted: jax.Array
) -> UInt32[Array, '... 1']:
  """The highest value from which on the weights reach `wanted`, bit by bit."""

  def refine(step, floor):
    higher = floor | (jnp.uint32(1) << (31 - step).astype(jnp.uint32))
    mass = jnp.sum(
        jnp.where(order >= higher, weights, 0), axis=-1, keepdims=True
    )
    return jnp.where(mass >= wanted, higher, floor)

  return jax.lax.fori_loop(0, 32, refine, jnp.zeros_like(order[..., :1]))
