"""Candidates of each slot, and the score of each adjacent pair (DFlash 2)."""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.nn import linear
from dflash_jax.typing import typed


@typed
def candidates(
    logits: Float[Array, '*rows Z V'], top_k: int
) -> tuple[Float[Array, '*rows Z K'], Int[Array, '*rows Z K']]:
  """Shaped logits and ids of the K best tokens of each drafted slot.

  Best first; of equal logits the lower id comes first.
  """
  # Without the barrier, XLA joins a later slice of the ids to the cut at K, no
  # longer sees a top-k, and sorts the vocabulary: 70 ms on CPU, rather than 1.
  # One barrier over both would abort the compilation of a divided program.
  best, ids = jax.lax.top_k(logits, top_k)
  barrier = jax.lax.optimization_barrier
  return barrier(best), barrier(ids)


class Selector(nn.Module):
  """Scores a candidate by itself and by the one before it.

  `s_k(a, b) = u_k(b) + <A[a] * P h_k, B[b]>` for slots k = 1 .. Z, with `u` the
  shaped logit, `h` the final-normed hidden state, `A` and `B` the codebooks.
  As `B` starts at zero, so does the pair term.

  Attributes:
    vocab_size: V.
    width: model width D.
    rank: width R of the codebooks.
    projected: the codebooks are `embedding @ W.T` for small W, rather than
      free `[V, R]` tables.
  """

  vocab_size: int
  width: int
  rank: int
  projected: bool

  def setup(self):
    normal, zeros = nn.initializers.normal(0.02), nn.initializers.zeros
    self.hidden_projection = self.param(
        'hidden_projection', normal, (self.rank, self.width)
    )
    kind, shape = 'codebook', (self.vocab_size, self.rank)
    if self.projected:
      kind, shape = 'projection', (self.rank, self.width)
    self.predecessor = self.param(f'predecessor_{kind}', normal, shape)
    self.successor = self.param(f'successor_{kind}', zeros, shape)

  @typed
  def __call__(
      self,
      hidden: Float[Array, '*rows Z D'],
      unary: Float[Array, '*rows Z K'],
      candidates: Int[Array, '*rows Z K'],
      anchor: Int[Array, '*rows'],
      embed: Callable,
  ) -> Float[Array, '*rows Z K K']:
    """Scores of all pairs, predecessors before candidates.

    Args:
      hidden: final-normed hidden states of the drafted slots.
      unary: shaped logits of the candidates.
      candidates: token ids.
      anchor: the token before slot 1, the only predecessor there: all K rows
        of the first slot are equal.
      embed: token ids to rows of the target's embedding, for projected
        codebooks.
    """
    first = jnp.broadcast_to(
        anchor[..., None, None], candidates[..., :1, :].shape
    )
    before = jnp.concatenate([first, candidates[..., :-1, :]], axis=-2)
    context = linear.project(hidden, self.hidden_projection)
    gated = self._rows(self.predecessor, before, embed) * context[..., None, :]
    successors = self._rows(self.successor, candidates, embed)
    pairs = jnp.einsum(
        '...aR,...bR->...ab', gated, successors,
        preferred_element_type=jnp.float32,
    )
    return unary[..., None, :] + pairs

  def _rows(self, weights, tokens, embed):
    if self.projected:
      return linear.project(embed(tokens), weights)
    return jnp.take(weights, tokens, axis=0)
