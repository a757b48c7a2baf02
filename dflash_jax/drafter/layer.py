"""One draft layer: a decoder layer, with or without convolutions."""

import jax

from dflash_jax.drafter import convolution
from dflash_jax.nn import layer


class DraftLayer(layer.DecoderLayer):
  """A decoder layer whose sublayers may have convolutions around them.

  Attributes:
    conv_kernel_size: taps of the convolutions (DFlash 2); None has none (v1).
    conv_group_size: channels that share dynamic coefficients.
  """

  conv_kernel_size: int | None = None
  conv_group_size: int | None = None

  def setup(self):
    super().setup()
    if self.conv_kernel_size is not None:
      self.attention_conv, self.mlp_conv = (
          convolution.DynamicConv(
              self.hidden_size, self.conv_kernel_size, self.conv_group_size
          )
          for _ in range(2)
      )

  def enter(self, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """What q, k and v of the block read, and coefficients for `finish`.

    Args:
      x: residual stream of blocks, `[..., L, D]`.
    """
    normed = self.attention_norm(x)
    if self.conv_kernel_size is None:
      return normed, None
    front, back = self.attention_conv.coefficients(normed)
    return self.attention_conv.front(normed, front), back

  def finish(
      self, x: jax.Array, attended: jax.Array, back: jax.Array | None
  ) -> jax.Array:
    """Both residual updates, each behind its convolution."""
    if self.conv_kernel_size is None:
      return super().finish(x, attended)
    x = x + self.attention_conv.back(self.o(attended), back)
    normed = self.mlp_norm(x)
    front, back = self.mlp_conv.coefficients(normed)
    out = self.mlp(self.mlp_conv.front(normed, front))
    return x + self.mlp_conv.back(out, back)
