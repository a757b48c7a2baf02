"""Root-mean-square normalisation."""

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dflash_jax.typing import typed


@typed
def rms_norm(
    x: Float[Array, '*rows D'], scale: Float[Array, 'D'], eps: float
) -> Float[Array, '*rows D']:
  """`x / rms(x) * scale` over the last axis, in float32, returned as x.dtype."""
  x32 = x.astype(jnp.float32)
  inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
  scale = jnp.broadcast_to(scale.astype(jnp.float32), x.shape)
  return (x32 * inverse * scale).astype(x.dtype)


class RMSNorm(nn.Module):
  """RMS norm whose weight multiplies (the Llama and Qwen3 kind)."""

  eps: float

  @nn.compact
  def __call__(self, x: Float[Array, '*rows D']) -> Float[Array, '*rows D']:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    return rms_norm(x, scale, self.eps)
