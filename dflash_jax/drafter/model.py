"""The DFlash block drafter (arXiv 2602.06036, section 4.1), v1 and v2."""

from collections.abc import Callable

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import layer as layers
from dflash_jax.nn import attention
from dflash_jax.nn import cache as kv
from dflash_jax.nn import linear
from dflash_jax.nn import norms
from dflash_jax.selector import module as selector_module
from dflash_jax.typing import typed

# Logit of a token that a drafter's own head does not have: below all others,
# yet finite, so that no difference of two is NaN.
ABSENT = -1e30


class Drafter(nn.Module):
  """Fills a block of masks in one forward pass.

  Target features become extra keys and values of every layer (KV injection);
  they are never queries. Embedding and output head are the target's, which the
  caller lends; some published drafters have a head of their own, over fewer
  tokens. DFlash 2 adds convolutions around every sublayer and a selector of
  candidates. The configuration says which parts there are.
  """

  config: drafter_config.DrafterConfig

  def setup(self):
    config = self.config
    self.fc = linear.Linear(config.hidden_size)
    self.context_norm = norms.RMSNorm(config.norm_eps)
    self.layers = [
        layers.DraftLayer(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            rope_scaling=config.rope_scaling,
            qk_norm=True,
            conv_kernel_size=config.conv_kernel_size,
            conv_group_size=config.conv_group_size,
        )
        for _ in range(config.num_layers)
    ]
    self.final_norm = norms.RMSNorm(config.norm_eps)
    if config.draft_vocab_size is not None:
      size = config.draft_vocab_size
      self.head = linear.Linear(size)
      # The target's token of each row of the head.
      self.head_ids = self.param('head_ids', lambda _: jnp.arange(size))
    if config.selector_rank is not None:
      self.selector = selector_module.Selector(
          config.vocab_size, config.hidden_size, config.selector_rank,
          config.selector_projected,
      )

  @typed
  def fuse(self, features: Float[Array, 'B C P D']) -> Float[Array, 'B C D']:
    """Context feature: `RMSNorm(fc(concatenated taps))`, once a token."""
    flat = features.reshape(*features.shape[:2], -1)
    return self.context_norm(self.fc(flat))

  @typed
  def inject(
      self, features: Float[Array, 'B C P D'], cache: kv.KVCache
  ) -> kv.KVCache:
    """Writes the features' keys and values behind `cache.length`.

    The length stays: the caller commits as many rows as are real.
    """
    context = self.fuse(features)
    steps = jnp.arange(features.shape[1])
    positions = cache.length[:, None] + steps[None]
    all_keys, all_values = [], []
    for index, layer in enumerate(self.layers):
      keys, values = layer.keys_values(context, positions)
      keys, values = kv.write(cache, index, keys, values)
      all_keys.append(keys)
      all_values.append(values)
    return cache.replace(keys=tuple(all_keys), values=tuple(all_values))

  @typed
  def __call__(
      self, block: Float[Array, 'B L D'], cache: kv.KVCache
  ) -> tuple[Float[Array, 'B L D'], kv.KVCache]:
    """Final-normed hidden states of one block a row, anchor first.

    The block sits at positions `cache.length ..`, right behind the injected
    context. Its own keys and values go into the returned cache behind
    `length`, which stays: the next injection overwrites them.
    """
    length = block.shape[1]
    start = cache.length
    positions = start[:, None] + jnp.arange(length)[None]
    slots = jnp.arange(cache.capacity)[None, None]
    written = slots < (start + length)[:, None, None]
    x = block * self.config.input_embedding_scale
    all_keys, all_values = [], []
    for index, layer in enumerate(self.layers):
      normed, back = layer.enter(x)
      keys, values = layer.keys_values(normed, positions)
      keys, values = kv.write(cache, index, keys, values)
      all_keys.append(keys)
      all_values.append(values)
      mask = written & attention.visible(
          positions[:, :, None], slots,
          self.config.causal(index), self.config.window(index),
      )
      queries = layer.queries(normed, positions)
      attended = attention.attend(queries, keys, values, mask)
      x = layer.finish(x, attended, back)
    cache = cache.replace(keys=tuple(all_keys), values=tuple(all_values))
    return self.final_norm(x), cache

  @typed
  def blocks(
      self,
      block: Float[Array, 'B A L D'],
      anchors: Int[Array, 'B A'],
      features: Float[Array, 'B C P D'],
  ) -> Float[Array, 'B A L D']:
    """Many blocks at once, each as if decoded alone (training and analysis).

    Args:
      block: embeddings of `[anchor, mask, ...]`, one block an anchor.
      anchors: position of each block's slot 0. Blocks may overlap: a block
        sees context strictly before its anchor, and itself, whatever else is
        in the batch.
      features: tapped target features of positions `0 .. C - 1`.

    Returns:
      Final-normed hidden states.
    """
    length = block.shape[2]
    context = self.fuse(features)
    context_positions = jnp.broadcast_to(
        jnp.arange(context.shape[1]), context.shape[:2]
    )
    positions = anchors[..., None] + jnp.arange(length)[None, None]
    x = block * self.config.input_embedding_scale
    for index, layer in enumerate(self.layers):
      causal, window = self.config.causal(index), self.config.window(index)
      normed, back = layer.enter(x)
      before = context_positions[:, None, None] < anchors[..., None, None]
      context_mask = before & attention.visible(
          positions[..., None], context_positions[:, None, None], causal, window
      )
      block_mask = attention.visible(
          positions[..., None], positions[:, :, None], causal, window
      )
      attended = attention.attend_blocks(
          layer.queries(normed, positions),
          layer.keys_values(context, context_positions),
          layer.keys_values(normed, positions),
          context_mask,
          block_mask,
      )
      x = layer.finish(x, attended, back)
    return self.final_norm(x)

  @typed
  def logits(
      self, hidden: Float[Array, '*rows D'], target_head: Callable
  ) -> Float[Array, '*rows V']:
    """Logits over the target's vocabulary: multiplier first, then soft cap.

    Args:
      hidden: final-normed hidden states.
      target_head: hidden states to float32 logits. A drafter with a head of
        its own does not ask it; a token that its head lacks gets `ABSENT`.
    """
    own = self.config.draft_vocab_size is not None
    out = self.head(hidden).astype(jnp.float32) if own else target_head(hidden)
    out = out * self.config.output_multiplier
    cap = self.config.final_logit_softcapping
    if cap is not None:
      out = cap * jnp.tanh(out / cap)
    if not own:
      return out
    absent = jnp.full((*out.shape[:-1], self.config.vocab_size), ABSENT)
    return absent.at[..., self.head_ids].set(
        out, unique_indices=True, indices_are_sorted=True
    )

  @typed
  def pair_scores(
      self,
      hidden: Float[Array, '*rows Z D'],
      unary: Float[Array, '*rows Z K'],
      candidates: Int[Array, '*rows Z K'],
      anchor: Int[Array, '*rows'],
      embed: Callable,
  ) -> Float[Array, '*rows Z K K']:
    """The selector's scores of adjacent candidates; see `selector.module`."""
    return self.selector(hidden, unary, candidates, anchor, embed)

  def empty_cache(self, batch: int, capacity: int, dtype=jnp.float32):
    """A context cache of `capacity` slots for `batch` rows."""
    config = self.config
    return kv.KVCache.create(
        config.num_layers, batch, capacity, config.num_kv_heads,
        config.head_dim, dtype,
    )


def block_tokens(
    anchor: Int[Array, '*rows'], block_size: int, mask_token_id: int
) -> Int[Array, '*rows L']:
  """`[anchor, mask, ..., mask]`, slot 0 first."""
  masks = jnp.full((*anchor.shape, block_size - 1), mask_token_id, anchor.dtype)
  return jnp.concatenate([anchor[..., None], masks], axis=-1)
