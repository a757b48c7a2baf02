"""What a dense target model is: the numbers its layers need."""

import dataclasses

from dflash_jax.nn import rotary


@dataclasses.dataclass(frozen=True)
class TargetConfig:
  """Shape of a dense, causal, attention-only language model.

  Attributes:
    vocab_size: rows of the embedding and of the head.
    hidden_size: model width D.
    num_layers: decoder blocks.
    num_heads: query heads N.
    num_kv_heads: key-value heads M.
    head_dim: width of a head H.
    intermediate_size: hidden width of the MLP F.
    norm_eps: epsilon of the RMS norms.
    rope_theta: rotary base.
    max_length: positions the model was trained for; longer requests are
      refused.
    tied_head: the embedding matrix is also the output head.
    rope_scaling: of the rotary frequencies (Llama 3.1).
    qkv_bias: biases on q, k and v (Qwen2).
    qk_norm: per-head RMS norm of q and k (Qwen3).
  """

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  intermediate_size: int
  norm_eps: float
  rope_theta: float
  max_length: int
  tied_head: bool
  rope_scaling: rotary.Llama3Scaling | None = None
  qkv_bias: bool = False
  qk_norm: bool = False
