"""Prefill, one round, and the whole loop, as pure functions of a state.

`Engine` holds what is static (modules, block size, stop tokens); jit with the
engine as a static argument, or use `decode.session`, which does.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dflash_jax.decode import propose as proposing
from dflash_jax.decode import state as states
from dflash_jax.drafter import model as drafter_model
from dflash_jax.selector import walks
from dflash_jax.target import decoder
from dflash_jax.typing import typed
from dflash_jax.verifier import greedy


@dataclasses.dataclass(frozen=True)
class Engine:
  """A target, and the drafter that proposes for it.

  Attributes:
    target: the model whose output is wanted.
    drafter: None decodes autoregressively: the same rounds with blocks of one
      slot, the anchor.
    block_size: slots of a block L, anchor included; 1 without a drafter.
    stop_ids: tokens that end a request, and are part of its output.
    walk: path through the pair scores of a drafter with a selector.
  """

  target: decoder.Decoder
  drafter: drafter_model.Drafter | None
  block_size: int
  stop_ids: tuple[int, ...]
  walk: proposing.Walk = walks.greedy

  def __post_init__(self):
    if (self.block_size == 1) != (self.drafter is None):
      raise ValueError('block_size is 1 exactly when there is no drafter')

  @property
  def taps(self) -> tuple[int, ...]:
    """Target blocks whose output the drafter reads."""
    return self.drafter.config.target_layer_ids if self.drafter else ()

  @typed
  def prefill(
      self,
      params: states.Params,
      prompts: Int[Array, 'B T'],
      prompt_length: Int[Array, 'B'],
      limit: Int[Array, 'B'],
      capacity: int,
  ) -> states.DecodeState:
    """Reads the prompts and commits each row's first token.

    Args:
      params: of target and drafter.
      prompts: right-padded.
      prompt_length: real tokens of each row, at least 1.
      limit: prompt and new tokens together at which a row ends.
      capacity: slots of caches and buffers; at least the largest limit and a
        block more, so that the last round's block fits.
    """
    batch, length = prompts.shape
    target_params = {'params': params.target}
    dtype = params.target['embedding'].dtype
    hidden, features, cache = self.target.apply(
        target_params,
        prompts,
        self.target.empty_cache(batch, capacity, dtype),
        self.taps,
        span=length,
    )
    last = jnp.take_along_axis(
        hidden, (prompt_length - 1)[:, None, None], axis=1
    )
    logits = self.target.apply(target_params, last, method='head')
    first = jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32)
    draft_cache = None
    if self.drafter is not None:
      draft_cache = self.drafter.apply(
          {'params': params.drafter},
          features,
          self.drafter.empty_cache(batch, capacity, dtype),
          method='inject',
      ).replace(length=prompt_length)
    blank = jnp.zeros((batch, capacity), jnp.int32)
    zeros = jnp.zeros((batch,), jnp.int32)
    tokens = states.put_row(blank, zeros, prompts, prompt_length)
    return states.DecodeState(
        tokens=states.put_row(
            tokens, prompt_length, first[:, None], zeros + 1
        ),
        length=prompt_length + 1,
        limit=limit,
        done=self._stops(first) | (prompt_length + 1 >= limit),
        target_cache=cache.replace(length=prompt_length),
        draft_cache=draft_cache,
        features=jnp.zeros(
            (batch, self.block_size, *features.shape[2:]), features.dtype
        ),
        num_features=zeros,
        num_rounds=zeros,
        accepted=blank,
        produced=blank,
    )

  def round(
      self, params: states.Params, state: states.DecodeState
  ) -> states.DecodeState:
    """Draft a block, score it with the target, commit what holds.

    A row that is done goes through the motions and stays as it is.
    """
    with jax.named_scope('draft'):
      block, draft_cache = self._draft(params, state)
    with jax.named_scope('verify'):
      target_params = {'params': params.target}
      hidden, features, target_cache = self.target.apply(
          target_params, block, state.target_cache, self.taps
      )
      logits = self.target.apply(target_params, hidden, method='head')
      accepted, emitted = greedy.verify(block[:, 1:], logits)
    with jax.named_scope('commit'):
      count = self._count(state, accepted, emitted)
      length = state.length + count
      last = jnp.take_along_axis(
          emitted, jnp.maximum(count - 1, 0)[:, None], axis=1
      )[:, 0]
      active = (~state.done).astype(jnp.int32)

      def log(buffer: jax.Array, value: jax.Array) -> jax.Array:
        return states.put_row(
            buffer, state.num_rounds, value[:, None], active
        )

      return state.replace(
          tokens=states.put_row(state.tokens, state.length, emitted, count),
          length=length,
          done=state.done | self._stops(last) | (length >= state.limit),
          target_cache=target_cache.replace(length=length - 1),
          draft_cache=draft_cache,
          features=features,
          num_features=count,
          num_rounds=state.num_rounds + active,
          accepted=log(state.accepted, accepted),
          produced=log(state.produced, count),
      )

  def generate(
      self, params: states.Params, state: states.DecodeState
  ) -> states.DecodeState:
    """Rounds until every row is done, as one loop on the device."""
    return jax.lax.while_loop(
        lambda state: ~jnp.all(state.done),
        lambda state: self.round(params, state),
        state,
    )

  def _draft(self, params, state):
    """The block's tokens `[B, L]`, and the cache with the context injected."""
    anchor = jnp.take_along_axis(
        state.tokens, (state.length - 1)[:, None], axis=1
    )[:, 0]
    if self.drafter is None:
      return anchor[:, None], None
    draft_params = {'params': params.drafter}
    target_params = {'params': params.target}
    cache = self.drafter.apply(
        draft_params, state.features, state.draft_cache, method='inject'
    )
    cache = cache.replace(length=cache.length + state.num_features)
    tokens = drafter_model.block_tokens(
        anchor, self.block_size, self.drafter.config.mask_token_id
    )

    def embed(tokens: jax.Array) -> jax.Array:
      return self.target.apply(target_params, tokens, method='embed')

    hidden, cache = self.drafter.apply(draft_params, embed(tokens), cache)
    hidden = hidden[:, 1:]
    logits = self.target.apply(target_params, hidden, method='head')
    logits = self.drafter.apply(draft_params, logits, method='shape_logits')
    drafts = proposing.propose(
        self.drafter, params.drafter, hidden, logits, anchor, embed, self.walk
    )
    return jnp.concatenate([anchor[:, None], drafts], axis=1), cache

  def _count(self, state, accepted, emitted):
    """Tokens to commit: cut by the budget, and after the first stop token."""
    count = jnp.minimum(accepted + 1, state.limit - state.length)
    stops = self._stops(emitted)
    first_stop = jnp.where(
        jnp.any(stops, axis=1), jnp.argmax(stops, axis=1), emitted.shape[1]
    )
    count = jnp.minimum(count, first_stop + 1)
    return jnp.where(state.done, 0, count).astype(jnp.int32)

  def _stops(self, tokens: jax.Array) -> jax.Array:
    stop_ids = jnp.asarray(self.stop_ids, jnp.int32)
    return jnp.any(tokens[..., None] == jnp.broadcast_to(
        stop_ids, (*tokens.shape, len(self.stop_ids))
    ), axis=-1)
