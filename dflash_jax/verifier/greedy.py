"""Greedy verification: accept what the target would have said itself."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.nn import argmax
from dflash_jax.typing import typed


@typed
def verify(
    drafts: Int[Array, 'B slots'], logits: Float[Array, 'B L V']
) -> tuple[Int[Array, 'B'], Int[Array, 'B L']]:
  """Longest draft prefix that equals the target's argmax, and one token more.

  Args:
    drafts: drafted tokens of slots `1 .. L-1`.
    logits: the target's logits at slots `0 .. L-1`; slot j's row predicts the
      token of slot j+1. Ties go to the lowest token id.

  Returns:
    Number of accepted drafts a, and the tokens to emit: the first `a + 1`
    entries are the accepted drafts and the bonus token; the rest is not to be
    used.
  """
  greedy = argmax.argmax(logits)
  agrees = (drafts == greedy[:, :-1]).astype(jnp.int32)
  accepted = jnp.sum(jnp.cumprod(agrees, axis=1), axis=1)
  return accepted.astype(jnp.int32), greedy
