"""Judging what was decoded, by another path than decoding."""

import functools

import jax.numpy as jnp
import numpy as np

from dflash_jax.evaluate import analysis
from dflash_jax.evaluate import lossless
from dflash_jax.evaluate import metrics
from tests import tiny

PROMPTS = [np.asarray(tiny.tokens((n,), seed=n)).tolist() for n in (5, 9, 3)]
BLOCK = 5


@functools.cache
def teacher():
  return analysis.Teacher(*tiny.target())


@functools.cache
def decoded(block_size=BLOCK):
  return tiny.session(block_size).generate(PROMPTS, 24)


def test_greedy_output_has_no_margin_and_a_wrong_token_has():
  for prompt, completion in zip(PROMPTS, decoded()):
    tokens = completion.tokens
    assert teacher().margins(prompt, tokens).max() < analysis.NEAR_TIE
    wrong = [*tokens[:7], (tokens[7] + 1) % 64, *tokens[8:]]
    margins = teacher().margins(prompt, wrong)
    assert margins.shape == (24,)
    assert margins[:7].max() < analysis.NEAR_TIE < margins[7]


def test_ranks_replay_the_decode():
  drafter, params = tiny.drafter()
  ranker = analysis.Ranker(teacher(), drafter, params)
  ranks, valid, request, position = [], [], [], []
  for index, (prompt, completion) in enumerate(zip(PROMPTS, decoded())):
    found, exists = ranker.ranks(prompt, completion.tokens)
    assert found.shape == (23, BLOCK - 1)
    assert exists.sum(axis=1).tolist() == [4] * 20 + [3, 2, 1]
    ranks.append(found)
    valid.append(exists)
    request.append(np.full(len(found), index))
    position.append(np.arange(len(found)))
  walk = metrics.walk(
      *map(np.concatenate, (ranks, valid, request, position)), k=1
  )
  assert [walk[i] for i in range(3)] == [c.produced for c in decoded()]


def test_gold_ranks_by_sorting():
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 12, (6, 40)).astype(np.float32)  # With ties.
  gold = rng.integers(0, 40, 6)
  order = np.argsort(-logits, axis=1, kind='stable')
  exact = [list(order[i]).index(gold[i]) for i in range(6)]
  found = analysis.gold_ranks(jnp.asarray(logits), jnp.asarray(gold))
  assert found.tolist() == [min(rank, 16) for rank in exact]


def judge(ours, theirs, margins, their_margins=None):
  return lossless.judge(
      ['a'], [ours], [theirs], [np.array(margins)],
      [np.array(margins if their_margins is None else their_margins)],
  )


def test_identical_output_is_lossless():
  verdict = judge([1, 2], [1, 2], [0.0, 0.0])
  assert verdict == lossless.Verdict(True, 0, [])


def test_a_near_tie_is_counted_apart():
  verdict = judge([1, 3, 5], [1, 2, 4], [0.0, 5e-5, 0.0], [0.0, 0.0, 0.0])
  assert verdict.lossless and verdict.near_ties == 1


def test_a_failure_shows_position_and_both_margins():
  verdict = judge([1, 3], [1, 2], [0.0, 0.5], [0.0, 0.0])
  assert not verdict.lossless and verdict.near_ties == 0
  (line,) = verdict.failures
  for part in ('emitted token 1', 'speculative 3', '0.5', 'ive 2', '0.0'):
    assert part in line


def test_a_text_that_was_cut_short_is_not_lossless():
  verdict = judge([1], [1, 2], [0.0], [0.0, 0.0])
  assert not verdict.lossless
  assert 'speculative nothing' in verdict.failures[0]
