"""Grouped dynamic causal convolution over the slots of a block (DFlash 2)."""

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dflash_jax.nn import linear
from dflash_jax.typing import typed


@typed
def convolve(
    x: Float[Array, '*rows L D'],
    base: Float[Array, 'W D'],
    dynamic: Float[Array, '*rows L W G'],
) -> Float[Array, '*rows L D']:
  """`y[i] = sum_t (base[t] + dynamic[i, t]) * x[i - t]`, zero before slot 0.

  Nothing crosses from one block to the next, and nothing is kept: the slots of
  a block are all on one axis.

  Args:
    x: one block a row.
    base: weight of each tap and channel; tap 0 is the slot itself.
    dynamic: what each slot adds to it; a group shares it over D / G
      neighbouring channels.
  """
  group_size = x.shape[-1] // dynamic.shape[-1]
  base = base.astype(x.dtype)
  out = jnp.zeros_like(x)
  for tap in range(len(base)):
    past = [(0, 0)] * (x.ndim - 2) + [(tap, 0), (0, 0)]
    shifted = jnp.pad(x, past)[..., : x.shape[-2], :]
    added = jnp.repeat(dynamic[..., tap, :], group_size, axis=-1)
    weight = jnp.broadcast_to(base[tap], added.shape) + added
    out = out + weight * shifted
  return out


class DynamicConv(nn.Module):
  """The convolutions in front of a sublayer and behind it.

  Both take their coefficients from the sublayer's normed input. The identity
  at initialisation.

  Attributes:
    width: channels D.
    kernel_size: taps W.
    group_size: neighbouring channels that share dynamic coefficients.
  """

  width: int
  kernel_size: int
  group_size: int

  def setup(self):
    groups = self.width // self.group_size
    self.base_kernel = self.param(
        'base_kernel', _identity, (2, self.kernel_size, self.width)
    )
    self.kernel_projection = self.param(
        'kernel_projection',
        nn.initializers.zeros,
        (2 * self.kernel_size * groups, self.width),
    )

  @typed
  def coefficients(
      self, x: Float[Array, '*rows L D']
  ) -> tuple[Float[Array, '*rows L W G'], Float[Array, '*rows L W G']]:
    """Dynamic coefficients in front of and behind the sublayer of input `x`."""
    flat = linear.project(x, self.kernel_projection)
    sides = flat.reshape(*x.shape[:-1], 2, self.kernel_size, -1)
    return sides[..., 0, :, :], sides[..., 1, :, :]

  def front(self, x: jax.Array, dynamic: jax.Array) -> jax.Array:
    """The sublayer's input, convolved."""
    return convolve(x, self.base_kernel[0], dynamic)

  def back(self, x: jax.Array, dynamic: jax.Array) -> jax.Array:
    """The sublayer's output, convolved, before the residual sum."""
    return convolve(x, self.base_kernel[1], dynamic)


def _identity(key, shape, dtype=jnp.float32):
  del key
  return jnp.zeros(shape, dtype).at[:, 0].set(1)
