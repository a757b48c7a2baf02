"""Bias-free and biased projections with the weight laid out `[out, in]`."""

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dflash_jax.typing import typed

_FEW_ROWS = 64
# A longer vector does not fit XLA's threshold for streaming the transposed
# matrix, which it would then copy first: 15 times slower.
_LONG_VECTOR = 4096


@typed
def project(
    x: Float[Array, '*rows I'], kernel: Float[Array, 'O I']
) -> Float[Array, '*rows O']:
  """`x @ kernel.T`, in the form that XLA's CPU back end runs fastest.

  The few rows of a verify pass go as `kernel @ x.T`, twice as fast up to about
  32 rows; beyond, the transposed result costs more than it saves. Barriers keep
  XLA from turning that product back.
  """
  rows = x.reshape(-1, x.shape[-1])
  if len(rows) > _FEW_ROWS:
    out = jnp.matmul(rows, kernel.T)
  else:
    rows = jax.lax.optimization_barrier(rows)
    if len(rows) == 1 and rows.shape[1] < _LONG_VECTOR:
      out = jax.lax.optimization_barrier(jnp.matmul(rows, kernel.T))
    else:
      out = jax.lax.optimization_barrier(jnp.matmul(kernel, rows.T)).T
  return out.reshape(*x.shape[:-1], kernel.shape[0])


class Linear(nn.Module):
  """A projection to `features` outputs; parameters `kernel` and `bias`."""

  features: int
  use_bias: bool = False

  @nn.compact
  def __call__(self, x: Float[Array, '*rows I']) -> Float[Array, '*rows O']:
    kernel = self.param(
        'kernel', nn.initializers.normal(0.02), (self.features, x.shape[-1])
    )
    out = project(x, kernel)
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, (self.features,))
      out += jnp.broadcast_to(bias, out.shape)
    return out
