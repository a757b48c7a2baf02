"""Teacher-forced passes over what was decoded: is it lossless, what was near.

Both questions are asked of the finished text in one uncached forward pass of
the target, so they share no code path with the decoding that they judge.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from dflash_jax.decode import propose as proposing
from dflash_jax.decode import session
from dflash_jax.drafter import model as drafter_model
from dflash_jax.evaluate import metrics
from dflash_jax.selector import walks
from dflash_jax.target import decoder
from dflash_jax.typing import typed

# A float32 near-tie: another batch shape may round the other token on top.
NEAR_TIE = 1e-4
# Anchors whose drafts are ranked in one call; bounds the logits in memory.
_ANCHORS = 64


class Teacher:
  """Scores texts with a target and its parameters."""

  def __init__(self, target: decoder.Decoder, params: Any):
    self.target = target
    self.params = params
    self._margins = jax.jit(self._margins_of)
    self._features = jax.jit(self._features_of, static_argnames='taps')

  def margins(
      self, prompt: Sequence[int], tokens: Sequence[int]
  ) -> np.ndarray:
    """How far each emitted token falls short of the target's argmax.

    Args:
      prompt: token ids.
      tokens: emitted after it.

    Returns:
      `max(logits) - logits[emitted]` at each emitted position; 0 where the
      emitted token is the argmax.
    """
    row = _pad([*prompt, *tokens])
    margins = np.asarray(self._margins(self.params, row))
    start = len(prompt) - 1
    return margins[start : start + len(tokens)]

  def _margins_of(self, params, row):
    variables = {'params': params}
    hidden, _, _ = self.target.apply(variables, row[None])
    logits = self.target.apply(variables, hidden[0], method='head')
    following = jnp.concatenate([row[1:], row[:1]])
    emitted = jnp.take_along_axis(logits, following[:, None], axis=1)[:, 0]
    return jnp.max(logits, axis=1) - emitted

  def features(self, row: jax.Array, taps: tuple[int, ...]) -> jax.Array:
    """Tapped features `[1, S, P, D]` of one padded row."""
    return self._features(self.params, row, taps=taps)

  def _features_of(self, params, row, taps):
    return self.target.apply({'params': params}, row[None], taps=taps)[1]


class Ranker:
  """Ranks the true tokens among a drafter's logits, from every anchor."""

  def __init__(
      self,
      teacher: Teacher,
      drafter: drafter_model.Drafter,
      params: Any,
      walk: proposing.Walk = walks.greedy,
  ):
    self.teacher = teacher
    self.drafter = drafter
    self.params = params
    self.walk = walk
    self._ranks = jax.jit(self._ranks_of)

  def ranks(
      self, prompt: Sequence[int], tokens: Sequence[int]
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drafts a block from every emitted token but the last.

    Args:
      prompt: token ids.
      tokens: emitted after it.

    Returns:
      Ranks `[len(tokens) - 1, L - 1]` of the token that really came, by slot:
      0 is the argmax, `metrics.CANDIDATES` stands for all others; whether the
      draft is that token, which with a selector is another question; and which
      of them exist, as the text ends inside the last blocks.
    """
    config = self.drafter.config
    text = np.array([*prompt, *tokens], np.int32)
    row = _pad(text)
    features = self.teacher.features(row, config.target_layer_ids)
    anchors = np.arange(len(prompt), len(text) - 1)
    slots = np.arange(1, config.block_size)
    valid = anchors[:, None] + slots < len(text)
    if not len(anchors):
      return np.zeros(valid.shape, np.int64), valid, valid
    padded = np.zeros(-len(anchors) % _ANCHORS + len(anchors), np.int32)
    padded[: len(anchors)] = anchors
    parts = [
        self._ranks(self.params, self.teacher.params, row, features, chunk)
        for chunk in jnp.split(padded, len(padded) // _ANCHORS)
    ]
    ranks, hits = (
        np.concatenate(part)[: len(anchors)] for part in zip(*parts)
    )
    return ranks.astype(np.int64), hits, valid

  def _ranks_of(self, params, target_params, row, features, anchors):
    config = self.drafter.config
    target = self.teacher.target.bind({'params': target_params})
    draft_params = {'params': params}
    tokens = drafter_model.block_tokens(
        row[anchors], config.block_size, config.mask_token_id
    )
    hidden = self.drafter.apply(
        draft_params, target.embed(tokens)[None], anchors[None], features,
        method='blocks',
    )[0, :, 1:]
    logits = self.drafter.apply(
        draft_params, hidden, target.head, method='logits'
    )
    positions = anchors[:, None] + jnp.arange(1, config.block_size)[None]
    gold = row[jnp.minimum(positions, len(row) - 1)]
    drafts = proposing.propose(
        self.drafter, params, hidden, logits, row[anchors], target.embed,
        self.walk,
    )
    return gold_ranks(logits, gold), drafts == gold


@typed
def gold_ranks(
    logits: Float[Array, '*rows V'], gold: Int[Array, '*rows']
) -> Int[Array, '*rows']:
  """Rank of the gold token, clipped at `metrics.CANDIDATES`.

  Ties rank by token id, as argmax and top-k do.
  """
  score = jnp.take_along_axis(logits, gold[..., None], axis=-1)
  ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  ahead = (logits > score) | ((logits == score) & (ids < gold[..., None]))
  return jnp.minimum(jnp.sum(ahead, axis=-1), metrics.CANDIDATES)


def _pad(text: Sequence[int] | np.ndarray) -> jax.Array:
  row = np.zeros(session.bucket(len(text)), np.int32)
  row[: len(text)] = text
  return jnp.asarray(row)
