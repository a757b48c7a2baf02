"""The law of speculative sampling, enumerated: no die is cast.

For vocabularies of a few tokens. Every draft that can be drawn, and every number
of drafts that can be kept, is followed with its probability, through the same
functions that decoding uses.
"""

from collections.abc import Sequence
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax.decode import propose as proposing
from dflash_jax.drafter import model as drafter_model
from dflash_jax.selector import walks
from dflash_jax.target import decoder
from dflash_jax.verifier import law as laws
from dflash_jax.verifier import proposal as proposals
from dflash_jax.verifier import rules

_DECISIONS = {
    rules.rejection: rules.rejection_decision,
    rules.block: rules.block_decision,
}


# Compiled: op by op, a search for a cut-off is a program anew each time.
_log_probs = jax.jit(laws.log_probs)


class Pair:
  """A target, a drafter and a prompt, small enough to try everything.

  Attributes:
    drafter: the drafter's module.
    num_tokens: of the output.
  """

  def __init__(
      self,
      target: decoder.Decoder,
      target_params: Any,
      drafter: drafter_model.Drafter,
      drafter_params: Any,
      prompt: Sequence[int],
      num_tokens: int,
  ):
    """Runs both models behind every text of up to `num_tokens - 1` tokens."""
    self.drafter, self._params = drafter, drafter_params
    self.num_tokens = num_tokens
    size, config = target.config.vocab_size, drafter.config
    longest = num_tokens - 1 + config.block_size - 1
    texts = np.array(
        list(itertools.product(range(size), repeat=longest)), np.int32
    )
    rows = np.concatenate(
        [np.broadcast_to(np.int32(prompt), (len(texts), len(prompt))), texts],
        axis=1,
    )
    # The row of a text is its number in base `size`; a shorter one is at the
    # start of the rows that begin with it.
    stride = size ** np.arange(longest)[::-1]
    self._row = lambda text: int(np.dot(text, stride[: len(text)]))
    self.prefixes = [
        prefix for count in range(1, num_tokens)
        for prefix in itertools.product(range(size), repeat=count)
    ]
    self._starts = np.array([self._row(prefix) for prefix in self.prefixes])
    anchors = [len(prompt) + len(prefix) - 1 for prefix in self.prefixes]
    last = [prefix[-1] for prefix in self.prefixes]

    @jax.jit
    def run(target_params, drafter_params, rows, anchors, last):
      bound = target.bind({'params': target_params})
      hidden, features, _ = bound(rows, taps=config.target_layer_ids)
      logits = bound.head(hidden[:, len(prompt) - 1 :])
      block = drafter_model.block_tokens(
          last, config.block_size, config.mask_token_id
      )
      variables = {'params': drafter_params}
      hidden = drafter.apply(
          variables, bound.embed(block)[:, None], anchors[:, None],
          features[self._starts], method='blocks',
      )[:, 0, 1:]
      return logits, hidden, drafter.apply(
          variables, hidden, bound.head, method='logits'
      )

    last = jnp.asarray(last, jnp.int32)
    logits, hidden, draft_logits = run(
        target_params, drafter_params, jnp.asarray(rows),
        jnp.asarray(anchors, jnp.int32), last,
    )
    self._logits = np.asarray(logits)
    self._seen = (
        drafter, drafter_params, hidden, draft_logits, last,
        target.bind({'params': target_params}).embed,
    )

  def target_logits(self, text: Sequence[int]) -> np.ndarray:
    """Logits of the token behind the prompt and `text`."""
    return self._logits[self._row(text), len(text)]

  def target_law(self, settings: laws.Law) -> np.ndarray:
    """Law of `num_tokens` tokens, drawn one by one; an axis each.

    Args:
      settings: of one row.
    """
    size = self._logits.shape[-1]
    joint = np.zeros((size,) * self.num_tokens)
    prefixes = [(), *self.prefixes]
    logits = np.stack([self.target_logits(prefix) for prefix in prefixes])
    rows = _log_probs(logits[:, None], _broadcast(settings, len(logits)))
    for prefix, row in zip(prefixes, np.asarray(rows[:, 0], np.float64)):
      joint[prefix] += row.reshape(
          -1, *(1,) * (self.num_tokens - 1 - len(prefix))
      )
    # Sums of logarithms so far.
    return np.exp(joint)

  def output_law(
      self, settings: laws.Law, sampler: proposing.Sampler
  ) -> np.ndarray:
    """Law of `num_tokens` tokens from speculative rounds; an axis each.

    Args:
      settings: of one row.
      sampler: with one of the rules that cast dice: rejection or block.
    """
    drafts, chances, follow = jax.device_get(
        self._ways(settings, sampler=sampler)
    )
    after = {
        prefix: ways for prefix, *ways in zip(
            self.prefixes, drafts, chances, follow.astype(np.float64)
        )
    }
    size = self._logits.shape[-1]
    first = _log_probs(self.target_logits(())[None, None], settings)[0, 0]
    first, known = np.exp(np.asarray(first, np.float64)), {}
    return np.stack([
        first[token] * self._rest((token,), after, known)
        for token in range(size)
    ])

  def accepted(
      self, settings: laws.Law, sampler: proposing.Sampler
  ) -> np.ndarray:
    """Expected number of drafts that a round keeps, behind each prefix."""
    _, chances, _ = jax.device_get(self._ways(settings, sampler=sampler))
    return (chances * np.arange(chances.shape[-1])).sum(axis=(1, 2))

  @functools.partial(jax.jit, static_argnames=('self', 'sampler'))
  def _ways(self, settings, sampler):
    """All ways that a round can go, behind each prefix.

    Returns:
      Drafts `[prefix, way, Z]`; the chance that they are drawn and so many of
      them kept `[prefix, way, L]`; the law of the token behind the kept ones
      `[prefix, way, L, V]`.
    """
    count, width = len(self.prefixes), self.drafter.config.block_size
    if sampler.draws:
      paths, proposal = self._draws(settings, sampler)
    else:
      paths = proposing.propose(*self._seen, walks.greedy)[:, None]
      proposal = proposals.one_hot(paths.reshape(count, -1))
    ways = paths.shape[1]
    drafts = paths.reshape(count * ways, -1)
    # Row of each text in the table of logits: its digits, left-aligned.
    size = self._logits.shape[-1]
    digits = jnp.repeat(jnp.asarray(self._starts), ways)
    lengths = jnp.repeat(jnp.asarray(list(map(len, self.prefixes))), ways)
    rows = [digits]
    for slot in range(width - 1):
      place = size ** (self._logits.shape[1] - 2 - lengths - slot)
      rows.append(rows[-1] + drafts[:, slot] * place)
    logits = jnp.stack([
        jnp.asarray(self._logits)[row, lengths + slot]
        for slot, row in enumerate(rows)
    ], axis=1)
    law = laws.log_probs(logits, _broadcast(settings, len(drafts)))
    decision = _DECISIONS[sampler.rule](law, drafts, proposal)
    follow = jnp.stack([
        rules.follow(
            decision, law, proposal, jnp.full(len(drafts), kept, jnp.int32)
        ) for kept in range(width)
    ], axis=1)
    drawn = jnp.exp(jnp.sum(proposal.of(drafts), axis=1))[:, None]
    kept = -jnp.diff(decision.at_least, axis=1, append=0)
    chances = jnp.where(drawn > 0, drawn * kept, 0)
    follow /= jnp.sum(follow, axis=-1, keepdims=True)
    return jax.tree.map(
        lambda leaf: leaf.reshape(count, ways, *leaf.shape[1:]),
        (drafts, chances, follow),
    )

  def _draws(self, settings, sampler):
    """Every path `[prefix, way, Z]`, and its law as a proposal for all."""
    count = len(self.prefixes)
    log_probs, ids = proposing.draft_law(
        *self._seen, sampler, _broadcast(settings, count)
    )
    slots, size = log_probs.shape[1], log_probs.shape[-1]
    paths = jnp.asarray(
        list(itertools.product(range(size), repeat=slots)), jnp.int32
    )

    def spread(leaf):
      return jnp.repeat(leaf, len(paths), axis=0)

    every = jnp.tile(paths, (count, 1))
    if ids is None:
      proposal, drafts = proposals.Proposal(spread(log_probs)), every
    else:
      drafts = walks.tokens(every, spread(ids))
      proposal = proposals.Proposal(
          walks.along(spread(log_probs), every), spread(ids)
      )
    return drafts.reshape(count, len(paths), slots), proposal

  def _rest(self, prefix, after, known) -> np.ndarray:
    """Law of the tokens behind `prefix`, up to the last."""
    if prefix in known:
      return known[prefix]
    drafts, chances, follow = after[prefix]
    size, room = follow.shape[-1], self.num_tokens - len(prefix)
    out = np.zeros((size,) * room)
    for row, chance, behind in zip(drafts.tolist(), chances, follow):
      for kept in range(len(chance)):
        if chance[kept] == 0:
          continue
        head = tuple(row[:kept])
        if kept >= room:
          # The budget cuts the block.
          out[head[:room]] += chance[kept]
        elif kept + 1 == room:
          out[head] += chance[kept] * behind[kept]
        else:
          for token in np.flatnonzero(behind[kept]):
            text = (*head, int(token))
            out[text] += chance[kept] * behind[kept, token] * self._rest(
                (*prefix, *text), after, known
            )
    known[prefix] = out
    return out


def _broadcast(settings: laws.Law, rows: int) -> laws.Law:
  return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows,)), settings)
