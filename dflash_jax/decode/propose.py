"""From what the drafter computed to the tokens that it proposes."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.drafter import model as drafter_model
from dflash_jax.nn import argmax
from dflash_jax.selector import module as selectors
from dflash_jax.selector import walks
from dflash_jax.typing import typed
from dflash_jax.verifier import law as laws
from dflash_jax.verifier import noise as noises
from dflash_jax.verifier import proposal as proposals
from dflash_jax.verifier import rules

Walk = Callable[[jax.Array], jax.Array]
Rule = Callable[..., rules.Result]


@dataclasses.dataclass(frozen=True)
class Sampler:
  """How a request that samples drafts and accepts; what is static of it.

  Attributes:
    rule: acceptance rule; see `verifier.rules`.
    draws: the drafts are drawn from the drafter's law, rather than its best.
    draft_top_k: top-k of the drafter's law; 0 for none. Temperature is the
      request's, and no other setting of the request touches the drafter.
    draft_top_p: top-p of the drafter's law; 1 for none.
    penalties: requests may have penalties, which need counts of all tokens.
  """

  rule: Rule
  draws: bool
  draft_top_k: int = 0
  draft_top_p: float = 1.0
  penalties: bool = False


@typed
def propose(
    drafter: drafter_model.Drafter,
    params: Any,
    hidden: Float[Array, '*rows Z D'],
    logits: Float[Array, '*rows Z V'],
    anchor: Int[Array, '*rows'],
    embed: Callable,
    walk: Walk,
) -> Int[Array, '*rows Z']:
  """Drafts of every slot: its argmax, or a walk through the candidates.

  Args:
    drafter: with or without a selector.
    params: its parameters.
    hidden: final-normed hidden states of the drafted slots.
    logits: shaped logits of the same.
    anchor: token in front of the first.
    embed: token ids to rows of the target's embedding.
    walk: see `selector.walks`; without a selector it is not asked.
  """
  if drafter.config.selector_rank is None:
    return argmax.argmax(logits)
  ids, scores = _pairs(drafter, params, hidden, logits, anchor, embed)
  return walks.tokens(walk(scores), ids).astype(anchor.dtype)


@typed
def draft_law(
    drafter: drafter_model.Drafter,
    params: Any,
    hidden: Float[Array, 'B Z D'],
    logits: Float[Array, 'B Z V'],
    anchor: Int[Array, 'B'],
    embed: Callable,
    sampler: Sampler,
    law: laws.Law,
) -> tuple[jax.Array, jax.Array | None]:
  """Log-probabilities of every slot's drafts.

  Without a selector each slot is drawn for itself, over the vocabulary; with
  one, from its candidates behind the one drawn before.

  Args:
    drafter: as in `propose`.
    params: likewise.
    hidden: likewise.
    logits: likewise.
    anchor: likewise.
    embed: likewise.
    sampler: has the drafter's filters.
    law: of the requests, for their temperatures.

  Returns:
    `[B, Z, V]` and None, or `[B, Z, K, K]`, predecessors before candidates, and
    the candidates' ids `[B, Z, K]`.
  """
  neutral = jnp.ones_like(law.temperature)
  filters = laws.Law(
      temperature=law.temperature,
      top_k=jnp.full_like(law.top_k, sampler.draft_top_k),
      top_p=neutral * sampler.draft_top_p,
      min_p=neutral * 0,
      repetition_penalty=neutral,
      presence_penalty=neutral * 0,
      frequency_penalty=neutral * 0,
  )
  if drafter.config.selector_rank is None:
    return laws.log_probs(logits, filters), None
  ids, scores = _pairs(drafter, params, hidden, logits, anchor, embed)
  count = ids.shape[-1]
  rows = scores.reshape(len(scores), -1, count)
  return laws.log_probs(rows, filters).reshape(scores.shape), ids


@typed
def draw(
    log_probs: Float[Array, 'B Z ...'],
    ids: Int[Array, 'B Z K'] | None,
    vocab_size: int,
    sampler: Sampler,
    noise: noises.Noise,
) -> tuple[Int[Array, 'B Z'], proposals.Proposal]:
  """Drafts from a `draft_law`, and how likely each was.

  Args:
    log_probs: as `draft_law` returns them.
    ids: likewise.
    vocab_size: of the target.
    sampler: in coupled sampling the noise is that of the tokens' positions.
    noise: of the round.
  """
  slots, size = log_probs.shape[1], log_probs.shape[-1]
  coupled = sampler.rule is rules.coupled
  if ids is None:
    drafts = argmax.argmax(
        log_probs + noise.token(slots, vocab_size)
    ) if coupled else noise.drafts(log_probs)
    return drafts, proposals.Proposal(log_probs)
  gumbel = jnp.take_along_axis(
      noise.token(slots, vocab_size), ids, axis=-1
  ) if coupled else noise.walk(slots, size)
  path = walks.sampled(log_probs, gumbel)
  drafts = walks.tokens(path, ids).astype(jnp.int32)
  return drafts, proposals.Proposal(walks.along(log_probs, path), ids)


def _pairs(drafter, params, hidden, logits, anchor, embed):
  """Candidates `[..., Z, K]` and the scores of their pairs."""
  unary, ids = selectors.candidates(logits, drafter.config.selector_top_k)
  scores = drafter.apply(
      {'params': params}, hidden, unary, ids, anchor, embed,
      method='pair_scores',
  )
  return ids, scores
