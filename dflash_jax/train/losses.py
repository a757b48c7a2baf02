"""Losses of the drafter over the slots of many blocks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.typing import typed


@typed
def hard(
    logits: Float[Array, 'B A slots V'], labels: Int[Array, 'B A slots']
) -> Float[Array, 'B A slots']:
  """Cross-entropy with the token of the text (paper, section 4.2)."""
  picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits, axis=-1) - picked


@typed
def distill(
    logits: Float[Array, 'B A slots V'], teacher: Float[Array, 'B A slots V']
) -> Float[Array, 'B A slots']:
  """Cross-entropy with the target's own distribution over the vocabulary.

  Differs from the forward KL divergence by the teacher's entropy, which the
  drafter cannot change.
  """
  expected = jnp.sum(jax.nn.softmax(teacher, axis=-1) * logits, axis=-1)
  return jax.nn.logsumexp(logits, axis=-1) - expected


@typed
def weighted_mean(
    values: Float[Array, 'B A slots'], weights: Float[Array, 'B A slots']
) -> Float[Array, '']:
  """`sum(weights * values) / sum(weights)`; 0 where nothing has weight."""
  return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1e-9)
