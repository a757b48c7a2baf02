"""Requests in, completions out: shapes, buckets and compiled programs."""

from collections.abc import Iterator, Sequence
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax import errors
from dflash_jax.decode import engine as engines
from dflash_jax.decode import sampling as samplings
from dflash_jax.decode import state as states


@dataclasses.dataclass(frozen=True)
class Completion:
  """What one request got.

  Attributes:
    tokens: emitted tokens, the stop token included if there was one.
    accepted: drafts accepted in each round, before any cut.
    produced: tokens committed in each round, the bonus included. The first
      token comes from the prefill, so `len(tokens) == 1 + sum(produced)`.
    finished: ended with a stop token rather than by the budget.
    seconds: decoding time after the prefill, divided evenly over the batch.
    log_probs: of each token under the target's plain softmax.
    overlap: of each round, for requests that sample: `sum_x min(p, q)`, the
      chance that a draft is accepted, summed over the slots it got to.
  """

  tokens: list[int]
  accepted: list[int]
  produced: list[int]
  finished: bool
  seconds: float
  log_probs: list[float]
  overlap: list[float] | None


class Session:
  """Runs batches of requests; compiles once for each bucket of shapes.

  `params` may be replaced between requests, as training does; nothing else is
  kept from one request to the next.
  """

  def __init__(self, engine: engines.Engine, params: states.Params):
    self.engine = engine
    self.params = params
    self._prefill = jax.jit(engine.prefill, static_argnames='capacity')
    self._round = jax.jit(engine.round, donate_argnums=1)
    self._generate = jax.jit(engine.generate, donate_argnums=1)
    self._compiled: dict[tuple[int, int], jax.stages.Compiled] = {}

  def generate(
      self,
      prompts: Sequence[Sequence[int]],
      max_new_tokens: int,
      sampling: Sequence[samplings.Sampling] | None = None,
  ) -> list[Completion]:
    """Decodes `prompts` as one batch.

    Args:
      prompts: token ids of each request; lengths may differ.
      max_new_tokens: budget of each request, first token included.
      sampling: of each request; for an engine with a sampler, and for no other.

    Raises:
      errors.UserError: a prompt is empty, has an id outside the vocabulary or
        does not fit the target's context.
    """
    state = self._start(prompts, max_new_tokens, sampling)
    key = state.tokens.shape
    if key not in self._compiled:
      self._compiled[key] = self._generate.lower(self.params, state).compile()
    jax.block_until_ready(state)
    begin = time.perf_counter()
    state = jax.block_until_ready(self._compiled[key](self.params, state))
    seconds = (time.perf_counter() - begin) / len(prompts)
    return self._completions(state, prompts, seconds)

  def check(
      self, prompts: Sequence[Sequence[int]], max_new_tokens: int
  ) -> None:
    """Raises what `generate` would, before anything runs."""
    config = self.engine.target.config
    if max_new_tokens < 1:
      raise errors.UserError(
          f'max_new_tokens is {max_new_tokens}; it must be at least 1'
      )
    for index, prompt in enumerate(prompts):
      if len(prompt) == 0:
        raise errors.UserError(f'prompt {index} is empty; give it some text')
      if len(prompt) + max_new_tokens > config.max_length:
        raise errors.UserError(
            f'prompt {index} has {len(prompt)} tokens; with max_new_tokens'
            f' {max_new_tokens} that exceeds the context of'
            f' {config.max_length}; shorten either'
        )
      if min(prompt) < 0 or max(prompt) >= config.vocab_size:
        raise errors.UserError(
            f'prompt {index} has a token outside 0 to {config.vocab_size - 1};'
            ' it was made with the tokenizer of another model'
        )

  def stream(
      self,
      prompt: Sequence[int],
      max_new_tokens: int,
      sampling: samplings.Sampling | None = None,
  ) -> Iterator[list[int]]:
    """Yields the tokens of each round as it ends; the first from the prefill.

    The same round as in `generate`, stepped from Python.
    """
    state = self._start(
        [prompt], max_new_tokens, None if sampling is None else [sampling]
    )
    seen = len(prompt)
    while True:
      length = int(state.length[0])
      # Cut on the host: a slice on the device is a program for each length.
      yield np.asarray(state.tokens)[0, seen:length].tolist()
      seen = length
      if bool(state.done[0]):
        return
      state = self._round(self.params, state)

  def _start(self, prompts, max_new_tokens, sampling):
    """Checks, pads to buckets, prefills."""
    self.check(prompts, max_new_tokens)
    sampler = self.engine.sampler
    if (sampling is None) != (sampler is None):
      raise ValueError('sampling is for an engine with a sampler, and for all')
    if sampling is not None:
      if len(sampling) != len(prompts):
        raise ValueError('give a sampling for each prompt')
      if any(s.has_penalties for s in sampling) and not sampler.penalties:
        raise ValueError('penalties need a sampler with penalties')
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    padded_length = bucket(int(lengths.max()))
    padded = np.zeros((len(prompts), padded_length), np.int32)
    for row, prompt in zip(padded, prompts):
      row[: len(prompt)] = prompt
    # Room for the last round's block; fixed by the bucket and the budget, so
    # that requests of a bucket share their programs.
    capacity = padded_length + max_new_tokens + self.engine.block_size
    return self._prefill(
        self.params,
        jnp.asarray(padded),
        jnp.asarray(lengths),
        jnp.asarray(lengths + max_new_tokens),
        capacity=-(-capacity // 64) * 64,
        requests=None if sampling is None else samplings.requests(sampling),
    )

  def _completions(self, state, prompts, seconds):
    host = jax.device_get(
        (state.tokens, state.length, state.num_rounds, state.accepted,
         state.produced, state.log_probs,
         state.accepted if state.overlap is None else state.overlap)
    )
    completions = []
    for prompt, tokens, length, rounds, accepted, produced, log_probs, overlap in (
        zip(prompts, *host)
    ):
      emitted = tokens[len(prompt) : length].tolist()
      completions.append(Completion(
          tokens=emitted,
          accepted=accepted[:rounds].tolist(),
          produced=produced[:rounds].tolist(),
          finished=emitted[-1] in self.engine.stop_ids,
          seconds=seconds,
          log_probs=log_probs[len(prompt) : length].tolist(),
          overlap=(
              None if state.overlap is None else overlap[:rounds].tolist()
          ),
      ))
    return completions


def bucket(size: int) -> int:
  """The smallest of 64, 128, 256, 512, ... that holds `size`."""
  return max(64, 1 << (size - 1).bit_length())
