"""Rounds of a real pair, drawn many times behind one text, against their law.

Every draw goes through the functions that decoding uses: drafts, acceptance and
residual. Only the forward passes are shared between draws that need the same.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax.decode import propose as proposing
from dflash_jax.drafter import model as drafter_model
from dflash_jax.evaluate import goodness
from dflash_jax.selector import walks
from dflash_jax.target import decoder
from dflash_jax.verifier import law as laws
from dflash_jax.verifier import noise as noises
from dflash_jax.verifier import proposal as proposals

# Drafts of a round that are looked at: the rules that see more than one token
# at a time differ from two on.
_SLOTS = 2
# Rounds in one call, and rows in one forward pass.
_ROUNDS, _ROWS = 128, 64
# Cells of the second token's test.
_BINS = 64
# Rows of logits to keep for later rounds, a vocabulary each.
_KEPT = 2048


class Rounds:
  """Rounds behind one text, whose last token is the anchor."""

  def __init__(
      self,
      target: decoder.Decoder,
      target_params: Any,
      drafter: drafter_model.Drafter,
      drafter_params: Any,
      text: Sequence[int],
  ):
    """Reads the text, and drafts one block behind it."""
    self.target, self.drafter = target, drafter
    self._params, self._draft_params = target_params, drafter_params
    self._text = text
    config = drafter.config

    @jax.jit
    def read(target_params, drafter_params, tokens):
      bound = target.bind({'params': target_params})
      count = len(text)
      hidden, features, cache = bound(
          tokens, target.empty_cache(1, count + _SLOTS + 1),
          config.target_layer_ids,
      )
      block = drafter_model.block_tokens(
          tokens[:, -1:], config.block_size, config.mask_token_id
      )
      variables = {'params': drafter_params}
      seen = drafter.apply(
          variables, bound.embed(block), jnp.full((1, 1), count - 1, jnp.int32),
          features, method='blocks',
      )[:, 0, 1 : _SLOTS + 1]
      logits = drafter.apply(variables, seen, bound.head, method='logits')
      return bound.head(hidden[:, -1])[0], seen, logits, cache

    tokens = jnp.asarray([text], jnp.int32)
    first, self._hidden, self._logits, self._cache = read(
        target_params, drafter_params, tokens
    )
    self._anchor = tokens[:, -1]
    # Logits of the target behind the text and these tokens.
    self._rows = {(): np.asarray(first)}

  def test(
      self,
      settings: laws.Law,
      samplers: Sequence[proposing.Sampler],
      num_draws: int,
      seed: int,
  ) -> list[dict[str, goodness.Fit]]:
    """Draws rounds, and tests the first two tokens of their texts.

    A round that ends after one token is continued by the target. The second
    token is tested by where it falls in its own law, given the first: that is
    uniform, whatever the first is.

    Args:
      settings: of one row.
      samplers: the rules, and how drafts come about; those that draft alike
        share the target's passes.
      num_draws: rounds of each.
      seed: of the draws.

    Returns:
      Fits of the `first` and the `second` token, for each of the samplers.
    """
    drawn = [[] for _ in samplers]
    for start in range(0, num_draws, _ROUNDS):
      requests = jnp.arange(start, start + _ROUNDS, dtype=jnp.int32)
      noise = noises.Noise(
          noises.row_keys(jnp.full(_ROUNDS, seed, jnp.int32), requests),
          jnp.full(_ROUNDS, len(self._text) - 1, jnp.int32),
      )
      for sampler, rounds in zip(samplers, drawn):
        rounds.append(self._round(settings, sampler, noise))
      for path in list(self._rows)[1:-_KEPT]:
        del self._rows[path]
    law = _log_probs(self._rows[()][None, None], settings)[0, 0]
    law = np.exp(np.asarray(law, np.float64))
    fits = []
    for rounds in drawn:
      first, below, chance = (
          np.concatenate(part)[:num_draws] for part in zip(*rounds)
      )
      spread = np.random.default_rng(seed).random(len(first))
      places = np.clip(below + spread * chance, 0, 1 - 1e-9)
      fits.append({
          'first': goodness.fit(np.bincount(first, minlength=len(law)), law),
          'second': goodness.fit(
              np.bincount((places * _BINS).astype(int), minlength=_BINS),
              np.full(_BINS, 1 / _BINS),
          ),
      })
    return fits

  def _round(self, settings, sampler, noise):
    """First tokens, and weights of the second ones' law below and at them."""
    drafts, proposal = self._propose(settings, noise, sampler=sampler)
    named = [tuple(row) for row in np.asarray(drafts).tolist()]
    self._read([row[:1] for row in named])
    self._read(named)
    logits = np.stack([
        [self._rows[row[:slot]] for slot in range(_SLOTS + 1)]
        for row in named
    ])
    accepted, emitted = jax.device_get(
        self._accept(
            settings, logits, drafts, proposal, noise, rule=sampler.rule
        )
    )
    firsts = [(token,) for token in emitted[:, 0].tolist()]
    self._read(firsts)
    behind = np.stack([self._rows[first] for first in firsts])
    below, chance = jax.device_get(
        self._finish(settings, behind, accepted, emitted[:, 1], noise)
    )
    return emitted[:, 0], below, chance

  @functools.partial(jax.jit, static_argnames=('self', 'sampler'))
  def _propose(self, settings, noise, sampler):
    bound = self.target.bind({'params': self._params})
    seen = (
        self.drafter, self._draft_params, self._hidden, self._logits,
        self._anchor, bound.embed,
    )

    def repeat(leaf):
      return jnp.repeat(leaf, _ROUNDS, axis=0)

    if not sampler.draws:
      drafts = repeat(proposing.propose(*seen, walks.greedy))
      return drafts, proposals.one_hot(drafts)
    log_probs, ids = proposing.draft_law(*seen, sampler, settings)
    return proposing.draw(
        repeat(log_probs), None if ids is None else repeat(ids),
        self._logits.shape[-1], sampler, noise,
    )

  @functools.partial(jax.jit, static_argnames=('self', 'rule'))
  def _accept(self, settings, logits, drafts, proposal, noise, rule):
    law = laws.log_probs(logits, _broadcast(settings, _ROUNDS))
    return rule(law, drafts, proposal, noise)

  @functools.partial(jax.jit, static_argnames='self')
  def _finish(self, settings, logits, accepted, second, noise):
    """The weight of the second token's law below it, and its own."""
    law = laws.log_probs(logits[:, None], _broadcast(settings, _ROUNDS))[:, 0]
    later = noises.Noise(noise.keys, noise.anchor + 1)
    fresh = later.replacement(law)
    second = jnp.where(accepted == 0, fresh, second)[:, None]
    chances = jnp.exp(law)
    ids = jnp.arange(law.shape[1])[None]
    below = jnp.sum(jnp.where(ids < second, chances, 0), axis=1)
    return below, jnp.take_along_axis(chances, second, 1)[:, 0]

  def _read(self, paths):
    """Logits behind each of the paths, all of one length, once."""
    wanted = sorted(set(paths) - set(self._rows))
    for start in range(0, len(wanted), _ROWS):
      part = wanted[start : start + _ROWS]
      padded = part + [part[0]] * (_ROWS - len(part))
      logits = self._forward(self._params, self._cache, jnp.asarray(padded))
      self._rows.update(zip(part, np.asarray(logits)))

  @functools.partial(jax.jit, static_argnames='self')
  def _forward(self, params, cache, tokens):
    cache = jax.tree.map(
        lambda leaf: jnp.tile(leaf, (_ROWS, *(1,) * (leaf.ndim - 1))), cache
    ).replace(length=jnp.full(_ROWS, len(self._text), jnp.int32))
    bound = self.target.bind({'params': params})
    return bound.head(bound(tokens, cache)[0][:, -1])


# Compiled: op by op, a search for a cut-off is a program anew each time.
_log_probs = jax.jit(laws.log_probs)


def _broadcast(settings: laws.Law, rows: int) -> laws.Law:
  return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows,)), settings)
