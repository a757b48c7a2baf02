"""From what the drafter computed to the tokens that it proposes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.drafter import model as drafter_model
from dflash_jax.selector import module as selectors
from dflash_jax.selector import walks
from dflash_jax.typing import typed

Walk = Callable[[jax.Array], jax.Array]


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
    return jnp.argmax(logits, axis=-1).astype(anchor.dtype)
  unary, ids = selectors.candidates(logits, drafter.config.selector_top_k)
  scores = drafter.apply(
      {'params': params}, hidden, unary, ids, anchor, embed,
      method='pair_scores',
  )
  return walks.tokens(walk(scores), ids).astype(anchor.dtype)
