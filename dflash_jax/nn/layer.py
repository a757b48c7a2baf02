"""One pre-norm transformer layer, shared by targets and drafters.

The layer owns the parameters and computes everything but the attention itself:
the caller decides which keys a query meets (own, cached, injected).
"""

from flax import linen as nn
import jax
from jaxtyping import Array, Float, Int

from dflash_jax.nn import linear
from dflash_jax.nn import norms
from dflash_jax.nn import rotary
from dflash_jax.typing import typed


class DecoderLayer(nn.Module):
  """Attention and SwiGLU parameters of a Llama, Qwen2 or Qwen3 layer.

  Attributes:
    num_heads: query heads.
    num_kv_heads: key and value heads.
    head_dim: width of a head.
    intermediate_size: hidden width of the MLP.
    norm_eps: epsilon of every RMS norm.
    rope_theta: rotary base.
    rope_scaling: of the rotary frequencies (Llama 3.1).
    qkv_bias: bias on the q, k and v projections (Qwen2).
    qk_norm: RMS norm of each query and key head (Qwen3, DFlash drafters).
  """

  hidden_size: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  intermediate_size: int
  norm_eps: float
  rope_theta: float
  rope_scaling: rotary.Llama3Scaling | None = None
  qkv_bias: bool = False
  qk_norm: bool = False

  def setup(self):
    kv_width = self.num_kv_heads * self.head_dim
    self.attention_norm = norms.RMSNorm(self.norm_eps)
    self.q = linear.Linear(self.num_heads * self.head_dim, self.qkv_bias)
    self.k = linear.Linear(kv_width, self.qkv_bias)
    self.v = linear.Linear(kv_width, self.qkv_bias)
    self.o = linear.Linear(self.hidden_size)
    if self.qk_norm:
      self.q_norm = norms.RMSNorm(self.norm_eps)
      self.k_norm = norms.RMSNorm(self.norm_eps)
    self.mlp_norm = norms.RMSNorm(self.norm_eps)
    self.gate = linear.Linear(self.intermediate_size)
    self.up = linear.Linear(self.intermediate_size)
    self.down = linear.Linear(self.hidden_size)

  def _heads(self, x: jax.Array, norm: norms.RMSNorm | None) -> jax.Array:
    heads = x.reshape(*x.shape[:-1], -1, self.head_dim)
    return heads if norm is None else norm(heads)

  def _angles(self, positions: jax.Array) -> jax.Array:
    return rotary.angles(
        positions, self.head_dim, self.rope_theta, self.rope_scaling
    )

  @typed
  def queries(
      self, x: Float[Array, '*rows D'], positions: Int[Array, '*rows']
  ) -> Float[Array, '*rows N H']:
    """Rotated queries of `x`, which is already normed."""
    heads = self._heads(self.q(x), self.q_norm if self.qk_norm else None)
    return rotary.rotate(heads, self._angles(positions))

  @typed
  def keys_values(
      self, x: Float[Array, '*rows D'], positions: Int[Array, '*rows']
  ) -> tuple[Float[Array, '*rows M H'], Float[Array, '*rows M H']]:
    """Rotated keys, and values, of `x`: a normed input or injected context."""
    keys = self._heads(self.k(x), self.k_norm if self.qk_norm else None)
    values = self._heads(self.v(x), None)
    return rotary.rotate(keys, self._angles(positions)), values

  @typed
  def finish(
      self, x: Float[Array, '*rows D'], attended: Float[Array, '*rows NH']
  ) -> Float[Array, '*rows D']:
    """Both residual updates: `x + o(attended)`, then the MLP."""
    x = x + self.o(attended)
    return x + self.mlp(self.mlp_norm(x))

  def mlp(self, normed: jax.Array) -> jax.Array:
    """SwiGLU."""
    return self.down(nn.silu(self.gate(normed)) * self.up(normed))
