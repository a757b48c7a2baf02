"""Prefill, one round, and the whole loop, as pure functions of a state.

`Engine` holds what is static (modules, block size, stop tokens); jit with the
engine as a static argument, or use `decode.session`, which does.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dflash_jax.decode import propose as proposing
from dflash_jax.decode import state as states
from dflash_jax.drafter import model as drafter_model
from dflash_jax.selector import walks
from dflash_jax.target import decoder
from dflash_jax.typing import typed
from dflash_jax.verifier import greedy
from dflash_jax.verifier import law as laws
from dflash_jax.verifier import noise as noises
from dflash_jax.verifier import proposal as proposals


@dataclasses.dataclass(frozen=True)
class Engine:
  """A target, and the drafter that proposes for it.

  Attributes:
    target: the model whose output is wanted.
    drafter: None decodes autoregressively: the same rounds with blocks of one
      slot, the anchor.
    block_size: slots of a block L, anchor included; 1 without a drafter.
    stop_ids: tokens that end a request, and are part of its output.
    walk: path through the pair scores of a drafter with a selector, where its
      drafts are chosen rather than drawn.
    sampler: how requests with a law of their own are served; None decodes
      greedily.
  """

  target: decoder.Decoder
  drafter: drafter_model.Drafter | None
  block_size: int
  stop_ids: tuple[int, ...]
  walk: proposing.Walk = walks.greedy
  sampler: proposing.Sampler | None = None

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
      requests: states.Requests | None = None,
  ) -> states.DecodeState:
    """Reads the prompts and commits each row's first token.

    Args:
      params: of target and drafter.
      prompts: right-padded.
      prompt_length: real tokens of each row, at least 1.
      limit: prompt and new tokens together at which a row ends.
      capacity: slots of caches and buffers; at least the largest limit and a
        block more, so that the last round's block fits.
      requests: what to sample; None exactly when there is no sampler.
    """
    batch, length = prompts.shape
    target = self.target.bind({'params': params.target})
    dtype = params.target['embedding'].dtype
    hidden, features, cache = target(
        prompts,
        self.target.empty_cache(batch, capacity, dtype),
        self.taps,
        span=length,
    )
    last = jnp.take_along_axis(
        hidden, (prompt_length - 1)[:, None, None], axis=1
    )
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
    nothing = blank.astype(jnp.float32)
    state = states.DecodeState(
        tokens=states.put_row(blank, zeros, prompts, prompt_length),
        length=prompt_length,
        limit=limit,
        done=zeros > 0,
        target_cache=cache.replace(length=prompt_length),
        draft_cache=draft_cache,
        features=jnp.zeros(
            (batch, self.block_size, *features.shape[2:]), features.dtype
        ),
        num_features=zeros,
        num_rounds=zeros,
        accepted=blank,
        produced=blank,
        log_probs=nothing,
        requests=requests,
        overlap=None if requests is None else nothing,
    )
    if self.sampler is not None and self.sampler.penalties:
      vocab_size = self.target.config.vocab_size
      real = jnp.arange(length)[None] < prompt_length[:, None]
      counts = jnp.zeros((batch, vocab_size), jnp.int32)
      state = state.replace(
          in_prompt=_count_tokens(counts, prompts, real) > 0, counts=counts
      )
    # The first token is that of a block without drafts.
    block, logits = prompts[:, :1], target.head(last)
    _, emitted, _ = self._verify(
        state, block, logits, proposals.one_hot(block[:, 1:])
    )
    return self._commit(state, emitted, logits, zeros + 1)

  def round(
      self, params: states.Params, state: states.DecodeState
  ) -> states.DecodeState:
    """Draft a block, score it with the target, commit what holds.

    A row that is done goes through the motions and stays as it is.
    """
    with jax.named_scope('draft'):
      block, proposal, draft_cache = self._draft(params, state)
    with jax.named_scope('verify'):
      target = self.target.bind({'params': params.target})
      hidden, features, target_cache = target(
          block, state.target_cache, self.taps
      )
      logits = target.head(hidden)
      accepted, emitted, overlap = self._verify(state, block, logits, proposal)
    with jax.named_scope('commit'):
      count = self._count(state, accepted, emitted)
      active = (~state.done).astype(jnp.int32)

      def log(buffer: jax.Array | None, value: jax.Array) -> jax.Array | None:
        if buffer is None:
          return None
        return states.put_row(
            buffer, state.num_rounds, value[:, None], active
        )

      state = state.replace(
          draft_cache=draft_cache,
          features=features,
          num_features=count,
          num_rounds=state.num_rounds + active,
          accepted=log(state.accepted, accepted),
          produced=log(state.produced, count),
          overlap=log(state.overlap, overlap),
      )
      state = self._commit(state, emitted, logits, count)
      return state.replace(
          target_cache=target_cache.replace(length=state.length - 1)
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
    """The block's tokens `[B, L]`, how its drafts were drawn, and the cache
    with the context injected."""
    anchor = jnp.take_along_axis(
        state.tokens, (state.length - 1)[:, None], axis=1
    )[:, 0]
    if self.drafter is None:
      block = anchor[:, None]
      return block, proposals.one_hot(block[:, 1:]), None
    draft_params = {'params': params.drafter}
    cache = self.drafter.apply(
        draft_params, state.features, state.draft_cache, method='inject'
    )
    cache = cache.replace(length=cache.length + state.num_features)
    tokens = drafter_model.block_tokens(
        anchor, self.block_size, self.drafter.config.mask_token_id
    )
    target = self.target.bind({'params': params.target})
    hidden, cache = self.drafter.apply(draft_params, target.embed(tokens), cache)
    hidden = hidden[:, 1:]
    logits = self.drafter.apply(
        draft_params, hidden, target.head, method='logits'
    )
    seen = (self.drafter, params.drafter, hidden, logits, anchor, target.embed)
    if self.sampler is not None and self.sampler.draws:
      drafts, proposal = proposing.draw(
          *proposing.draft_law(*seen, self.sampler, state.requests.law),
          logits.shape[-1], self.sampler, _noise(state),
      )
    else:
      drafts = proposing.propose(*seen, self.walk)
      proposal = proposals.one_hot(drafts)
    return jnp.concatenate([anchor[:, None], drafts], axis=1), proposal, cache

  def _verify(
      self, state, block, logits: Float[Array, 'B L V'], proposal
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Drafts to accept, tokens to emit, and how far the two laws overlap."""
    drafts = block[:, 1:]
    if self.sampler is None:
      return *greedy.verify(drafts, logits), None
    law = state.requests.law
    if self.sampler.penalties:
      # Row j follows the drafts of slots 1 .. j; the anchor is counted already.
      slots = jnp.arange(1, block.shape[1])
      added = jnp.zeros(logits.shape, jnp.int32).at[
          jnp.arange(len(block))[:, None], slots[None], drafts
      ].set(1)
      counts = state.counts[:, None] + jnp.cumsum(added, axis=1)
      logits = laws.penalise(logits, law, state.in_prompt, counts)
    target = laws.log_probs(logits, law)
    accepted, emitted = self.sampler.rule(
        target, drafts, proposal, _noise(state)
    )
    common = 1 - jnp.sum(
        proposal.excess(jnp.exp(target[:, :-1])), axis=-1
    )
    reached = jnp.arange(drafts.shape[1])[None] <= accepted[:, None]
    return accepted, emitted, jnp.sum(common * reached, axis=1)

  def _commit(self, state, emitted, logits, count):
    """Appends the first `count` emitted tokens of each row."""
    length = state.length + count
    last = jnp.take_along_axis(
        emitted, jnp.maximum(count - 1, 0)[:, None], axis=1
    )[:, 0]
    chosen = jnp.take_along_axis(logits, emitted[..., None], axis=-1)[..., 0]
    log_probs = chosen - jax.nn.logsumexp(logits, axis=-1)
    counts = state.counts
    if counts is not None:
      real = jnp.arange(emitted.shape[1])[None] < count[:, None]
      counts = _count_tokens(counts, emitted, real)
    return state.replace(
        tokens=states.put_row(state.tokens, state.length, emitted, count),
        length=length,
        done=state.done | self._stops(last) | (length >= state.limit),
        log_probs=states.put_row(
            state.log_probs, state.length, log_probs, count
        ),
        counts=counts,
    )

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


def _noise(state: states.DecodeState) -> noises.Noise:
  return noises.Noise(state.requests.keys, state.length - 1)


def _count_tokens(counts, tokens, real):
  """`counts` `[B, V]` with the real ones of `tokens` `[B, T]` added."""
  rows = jnp.arange(len(tokens))[:, None]
  return counts.at[rows, tokens].add(real.astype(counts.dtype))
