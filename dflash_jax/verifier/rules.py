"""Acceptance rules: which drafts to keep, and the token behind them.

Whatever the drafter, the emitted tokens follow the target's law exactly. All
rules have one signature:

    accepted, emitted = rule(target, drafts, proposal, noise)

with `target` the float32 log-probabilities `[B, L, V]` under the law
(`verifier.law`) at slots 0 .. Z; row j is the law of the token of slot j + 1.
The first `accepted + 1` of the emitted tokens `[B, L]` are the kept drafts and
one token more; the rest is not to be used. Without drafts (Z = 0) a rule is
autoregressive sampling.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.nn import argmax
from dflash_jax.typing import typed
from dflash_jax.verifier import noise as noises
from dflash_jax.verifier import proposal as proposals

Result = tuple[Int[Array, 'B'], Int[Array, 'B L']]


class Decision(NamedTuple):
  """What a rule decides before any die is cast.

  Attributes:
    at_least: chance that so many drafts are kept, `[B, L]`; 1 for none.
    scale: of the target's law in the residual behind so many, `[B, Z]`: the
      next token follows `max(scale * p - q, 0)`, normalised, and `p` behind the
      last draft.
  """

  at_least: Float[Array, 'B L']
  scale: Float[Array, 'B Z']


@typed
def rejection(
    target: Float[Array, 'B L V'],
    drafts: Int[Array, 'B Z'],
    proposal: proposals.Proposal,
    noise: noises.Noise,
) -> Result:
  """Token by token: keep x with chance `min(1, p(x) / q(x))`, stop at the first
  that is not kept (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv
  2302.01318)."""
  decision = rejection_decision(target, drafts, proposal)
  return _settle(decision, target, drafts, proposal, noise)


@typed
def rejection_decision(
    target: Float[Array, 'B L V'],
    drafts: Int[Array, 'B Z'],
    proposal: proposals.Proposal,
) -> Decision:
  """The chances of `rejection`."""
  kept = jnp.minimum(_ratios(target, drafts, proposal), 1)
  return Decision(_with_one(jnp.cumprod(kept, axis=1)), jnp.ones_like(kept))


@typed
def block(
    target: Float[Array, 'B L V'],
    drafts: Int[Array, 'B Z'],
    proposal: proposals.Proposal,
    noise: noises.Noise,
) -> Result:
  """The block as a whole: keeps at least as many drafts in expectation as any
  rule that looks at one token at a time (Sun et al., arXiv 2403.10444)."""
  decision = block_decision(target, drafts, proposal)
  return _settle(decision, target, drafts, proposal, noise)


@typed
def block_decision(
    target: Float[Array, 'B L V'],
    drafts: Int[Array, 'B Z'],
    proposal: proposals.Proposal,
) -> Decision:
  """The chances of `block` (its algorithm 2).

  With `w_i = min(w_{i-1} * p(x_i) / q(x_i), 1)`, draft i gets a coin that shows
  heads with chance `h_i = s_i / (s_i + 1 - w_i)`, where `s_i` is the weight of
  `max(w_i * p - q, 0)` behind it, and `h_Z = w_Z`. The last heads says how many
  drafts are kept.
  """
  def step(weight, ratio):
    weight = jnp.minimum(weight * ratio, 1)
    return weight, weight

  ratios = _ratios(target, drafts, proposal)
  _, weights = jax.lax.scan(step, jnp.ones_like(target[:, 0, 0]), ratios.T)
  weights = weights.T
  scale = _with_one(weights)[:, :-1]
  left = jnp.sum(
      proposal.excess(scale[..., None] * jnp.exp(target[:, :-1])), axis=-1
  )
  # Behind draft i, so not of the first slot.
  left = left[:, 1:]
  total = left + 1 - weights[:, :-1]
  heads = jnp.where(total > 0, left / jnp.where(total > 0, total, 1), 1)
  heads = jnp.concatenate([heads, weights[:, -1:]], axis=1)
  no_later = jnp.cumprod((1 - heads)[:, ::-1], axis=1)[:, ::-1]
  return Decision(_with_one(1 - no_later), scale)


@typed
def coupled(
    target: Float[Array, 'B L V'],
    drafts: Int[Array, 'B Z'],
    proposal: proposals.Proposal,
    noise: noises.Noise,
) -> Result:
  """The target draws its own token at every slot, from the noise of that
  position, which the drafter used too: drafts are kept while both agree. The
  text is the one that autoregressive sampling gives, token for token."""
  del proposal
  gumbel = noise.token(*target.shape[1:])
  own = argmax.argmax(target + gumbel)
  agrees = (drafts == own[:, :-1]).astype(jnp.int32)
  return jnp.sum(jnp.cumprod(agrees, axis=1), axis=1).astype(jnp.int32), own


@typed
def follow(
    decision: Decision,
    target: Float[Array, 'B L V'],
    proposal: proposals.Proposal,
    accepted: Int[Array, 'B'],
) -> Float[Array, 'B V']:
  """Weights, not normalised, of the token behind so many kept drafts."""
  law = jnp.exp(_at(target, accepted))[:, None]
  num_drafts = decision.scale.shape[1]
  if num_drafts == 0:
    return law[:, 0]
  here = jnp.minimum(accepted, num_drafts - 1)
  scale = jnp.take_along_axis(decision.scale, here[:, None], axis=1)
  left = proposal.slot(here).excess(scale[..., None] * law)
  # Rounding may leave nothing where the two laws are the same.
  some = jnp.sum(left, axis=-1, keepdims=True) > 0
  behind_all = (accepted == num_drafts)[:, None, None]
  return jnp.where(some & ~behind_all, left, law)[:, 0]


def _settle(decision, target, drafts, proposal, noise) -> Result:
  """Casts the dice: how many drafts, and which token behind them."""
  kept = noise.accept()[:, None] < decision.at_least[:, 1:]
  accepted = jnp.sum(kept, axis=1).astype(jnp.int32)
  weights = follow(decision, target, proposal, accepted)
  token = noise.replacement(jnp.log(weights))
  slots = jnp.arange(target.shape[1])[None]
  padded = jnp.pad(drafts, ((0, 0), (0, 1)))
  return accepted, jnp.where(slots == accepted[:, None], token[:, None], padded)


def _ratios(target, drafts, proposal) -> jax.Array:
  """`p(x) / q(x)` of each draft."""
  chance = jnp.take_along_axis(target[:, :-1], drafts[..., None], axis=-1)
  return jnp.exp(chance[..., 0] - proposal.of(drafts))


def _with_one(chances: jax.Array) -> jax.Array:
  return jnp.pad(chances, ((0, 0), (1, 0)), constant_values=1.0)


def _at(values: jax.Array, slot: jax.Array) -> jax.Array:
  return jnp.take_along_axis(values, slot[:, None, None], axis=1)[:, 0]
