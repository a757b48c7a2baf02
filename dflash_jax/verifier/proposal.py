"""How drafts were drawn, as far as the acceptance rules need to know."""

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.typing import typed


@struct.dataclass
class Proposal:
  """The law q of each drafted slot, given the drafts in front of it.

  Attributes:
    log_probs: `[B, Z, V]`, or `[B, Z, K]` over the tokens in `ids`; -inf where
      a token cannot be drafted.
    ids: distinct tokens `[B, Z, K]`; None stands for the whole vocabulary.
  """

  log_probs: jax.Array
  ids: jax.Array | None = None

  @typed
  def of(self, drafts: Int[Array, 'B Z']) -> Float[Array, 'B Z']:
    """Log-probability with which each draft was drawn."""
    if self.ids is None:
      return jnp.take_along_axis(
          self.log_probs, drafts[..., None], axis=-1
      )[..., 0]
    here = self.ids == drafts[..., None]
    return jnp.max(jnp.where(here, self.log_probs, -jnp.inf), axis=-1)

  @typed
  def excess(
      self, weights: Float[Array, 'B Z V']
  ) -> Float[Array, 'B Z V']:
    """`max(weights - q, 0)`."""
    chances = jnp.exp(self.log_probs)
    if self.ids is None:
      left = weights - chances
    else:
      rows, slots = jnp.ogrid[: weights.shape[0], : weights.shape[1]]
      left = weights.at[rows[..., None], slots[..., None], self.ids].add(
          -chances
      )
    return jnp.maximum(left, 0)

  def slot(self, index: Int[Array, 'B']) -> 'Proposal':
    """The law of one slot a row, as a proposal of one slot."""
    def take(leaf):
      return jnp.take_along_axis(leaf, index[:, None, None], axis=1)

    return jax.tree.map(take, self)


def one_hot(drafts: Int[Array, 'B Z']) -> Proposal:
  """Drafts that were not drawn but chosen."""
  return Proposal(jnp.zeros((*drafts.shape, 1)), drafts[..., None])
