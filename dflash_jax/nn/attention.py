"""Grouped-query attention and its visibility rule, as pure functions."""

import einops
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dflash_jax.typing import typed

# Score of a hidden key: its exponential is 0 next to any real score's, yet it
# is finite, so that a row with no visible key stays a number.
HIDDEN = -1e30


@typed
def attend(
    queries: Float[Array, 'B T N H'],
    keys: Float[Array, 'BM H S'],
    values: Float[Array, 'BM S H'],
    mask: Bool[Array, '#B T S'],
) -> Float[Array, 'B T NH']:
  """Softmax attention; query head n reads key head `n // (N / M)`.

  Args:
    queries: already rotated and normed; scaled here by `1 / sqrt(H)`.
    keys: in the layout of `nn.cache`.
    values: likewise.
    mask: True where a query may look. A query that may look nowhere gets some
      mean of the values rather than NaN, and its output means nothing.

  Returns:
    Heads side by side, in the dtype of `queries`.
  """
  batch, _, num_heads, head_dim = queries.shape
  num_kv_heads = len(keys) // batch
  group = num_heads // num_kv_heads
  grouped = einops.rearrange(
      queries * head_dim ** -0.5, 'B T (M G) H -> (B M) (T G) H', G=group
  )
  scores = jnp.einsum(
      'KQH,KHS->KQS', grouped, keys, preferred_element_type=jnp.float32
  )
  seen = jnp.broadcast_to(mask, (batch, *mask.shape[1:]))
  seen = jnp.repeat(jnp.repeat(seen, group, axis=1), num_kv_heads, axis=0)
  scores = jnp.where(seen, scores, HIDDEN)
  weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
  out = jnp.einsum('KQS,KSH->KQH', weights, values)
  return einops.rearrange(
      out, '(B M) (T G) H -> B T (M G H)', B=batch, G=group
  )


@typed
def visible(
    query: Int[Array, '*q'],
    key: Int[Array, '*k'],
    causal: bool,
    window: int | None,
) -> Bool[Array, '*both']:
  """Whether the query's position may see the key's, broadcasting the two.

  Causal: `key <= query`. A window W keeps `query - key < W` and, without
  causality, `key - query < W` too. (DFlash reference, block mask.)
  """
  distance = query - key
  allowed = jnp.ones(distance.shape, bool)
  if causal:
    allowed &= distance >= 0
  if window is not None:
    allowed &= (distance < window) & (distance > -window)
  return allowed


@typed
def attend_blocks(
    queries: Float[Array, 'B A L N H'],
    context: tuple[Float[Array, 'B C M H'], Float[Array, 'B C M H']],
    block: tuple[Float[Array, 'B A L M H'], Float[Array, 'B A L M H']],
    context_mask: Bool[Array, 'B A L C'],
    block_mask: Bool[Array, 'B A L L'],
) -> Float[Array, 'B A L NH']:
  """Attention of many blocks, each over shared context and over itself.

  The same sum as `attend` over `[context ; own block]`, without a copy of the
  context for every block.

  Args:
    queries: rotated and normed.
    context: keys and values of the sequence's context positions.
    block: keys and values of each block's own slots.
    context_mask: True where a slot may look at a context position.
    block_mask: True where a slot may look at a slot of its own block.
  """
  num_context, num_kv_heads = context[0].shape[1:3]
  grouped = einops.rearrange(
      queries * queries.shape[-1] ** -0.5,
      'B A L (M G) H -> B A L M G H', M=num_kv_heads,
  )
  scores = jnp.concatenate([
      jnp.where(
          context_mask[:, None, None],
          jnp.einsum(
              'BALMGH,BCMH->BMGALC', grouped, context[0],
              preferred_element_type=jnp.float32,
          ),
          HIDDEN,
      ),
      jnp.where(
          block_mask[:, None, None],
          jnp.einsum(
              'BALMGH,BAKMH->BMGALK', grouped, block[0],
              preferred_element_type=jnp.float32,
          ),
          HIDDEN,
      ),
  ], axis=-1)
  weights = jax.nn.softmax(scores, axis=-1).astype(context[1].dtype)
  out = jnp.einsum(
      'BMGALC,BCMH->BALMGH', weights[..., :num_context], context[1]
  ) + jnp.einsum('BMGALK,BAKMH->BALMGH', weights[..., num_context:], block[1])
  return einops.rearrange(out, 'B A L M G H -> B A L (M G H)')
