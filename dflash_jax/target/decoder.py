"""The frozen target: a dense decoder that also returns tapped features."""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.nn import attention
from dflash_jax.nn import cache as kv
from dflash_jax.nn import layer as layers
from dflash_jax.nn import linear
from dflash_jax.nn import norms
from dflash_jax.target import config as target_config
from dflash_jax.typing import typed


class Decoder(nn.Module):
  """Llama-style decoder. Parameters only; caches are plain arguments."""

  config: target_config.TargetConfig

  def setup(self):
    config = self.config
    self.embedding = self.param(
        'embedding',
        nn.initializers.normal(0.02),
        (config.vocab_size, config.hidden_size),
    )
    self.layers = [
        layers.DecoderLayer(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            rope_scaling=config.rope_scaling,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
        )
        for _ in range(config.num_layers)
    ]
    self.final_norm = norms.RMSNorm(config.norm_eps)
    if not config.tied_head:
      self.head_kernel = self.param(
          'head',
          nn.initializers.normal(0.02),
          (config.vocab_size, config.hidden_size),
      )

  def embed(self, tokens: Int[Array, '*rows']) -> Float[Array, '*rows D']:
    """Raw rows of the embedding matrix."""
    return jnp.take(self.embedding, tokens, axis=0)

  @typed
  def head(self, hidden: Float[Array, '*rows D']) -> Float[Array, '*rows V']:
    """Float32 logits of final-normed hidden states."""
    kernel = self.embedding if self.config.tied_head else self.head_kernel
    return linear.project(hidden, kernel).astype(jnp.float32)

  @typed
  def __call__(
      self,
      tokens: Int[Array, 'B T'],
      cache: kv.KVCache | None = None,
      taps: tuple[int, ...] = (),
      span: int | None = None,
  ) -> tuple[Float[Array, 'B T D'], Float[Array, 'B T P D'], kv.KVCache | None]:
    """Runs `tokens` after the cached positions.

    Args:
      tokens: row b's first token sits at position `cache.length[b]`, or 0.
      cache: keys and values seen so far. None means there is no past and none
        is wanted: plain causal attention over `tokens`.
      taps: zero-based blocks whose output is returned as features: the
        residual stream after that block and before the final norm.
      span: number of leading cache slots that any query can see; a static
        bound that spares a prefill the empty tail of the cache.

    Returns:
      Final-normed hidden states, features in the order of `taps`, and the
      cache with the new keys and values behind `length`, which stays: the
      caller commits as many as it accepts.
    """
    batch, length = tokens.shape
    start = jnp.zeros((batch,), jnp.int32) if cache is None else cache.length
    positions = start[:, None] + jnp.arange(length)[None]
    num_slots = length if cache is None else (span or cache.capacity)
    mask = attention.visible(
        positions[:, :, None], jnp.arange(num_slots)[None, None], True, None
    )
    x = self.embed(tokens)
    features, all_keys, all_values = {}, [], []
    for index, layer in enumerate(self.layers):
      normed = layer.attention_norm(x)
      queries = layer.queries(normed, positions)
      keys, values = layer.keys_values(normed, positions)
      if cache is None:
        keys, values = kv.key_slots(keys), kv.value_slots(values)
      else:
        keys, values = kv.write(cache, index, keys, values)
        all_keys.append(keys)
        all_values.append(values)
        keys, values = keys[..., :num_slots], values[:, :num_slots]
      x = layer.finish(x, attention.attend(queries, keys, values, mask))
      if index in taps:
        features[index] = x
    if cache is not None:
      cache = cache.replace(keys=tuple(all_keys), values=tuple(all_values))
    stacked = stack_features([features[tap] for tap in taps], x)
    return self.final_norm(x), stacked, cache

  def empty_cache(self, batch: int, capacity: int, dtype=jnp.float32):
    """A cache of `capacity` slots for `batch` rows."""
    config = self.config
    return kv.KVCache.create(
        config.num_layers, batch, capacity, config.num_kv_heads,
        config.head_dim, dtype,
    )


def parameter_shapes(config: target_config.TargetConfig):
  """Tree of the shapes of a decoder's parameters."""
  tokens = jnp.zeros((1, 1), jnp.int32)
  init = Decoder(config).init
  return jax.eval_shape(init, jax.random.key(0), tokens)['params']


def stack_features(features: Sequence[jax.Array], like: jax.Array):
  """`[B, T, D]` features as one `[B, T, P, D]` array; P may be 0."""
  if features:
    return jnp.stack(features, axis=2)
  batch, length, width = like.shape
  return jnp.zeros((batch, length, 0, width), like.dtype)
