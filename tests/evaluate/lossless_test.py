"""What counts as lossless, and what the verdict says."""

import numpy as np
import pytest

from dflash_jax.evaluate import lossless


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


def test_a_near_tie_that_goes_both_ways_is_still_one():
  """Identical output may hold one too: both picked the second of a tie."""
  verdict = judge([1, 3], [1, 3], [0.0, 9e-5])
  assert verdict.lossless and verdict.near_ties == 1


def test_the_limit_itself_is_no_tie():
  assert not judge([1], [1], [1e-4]).lossless


def test_a_text_may_end_elsewhere_behind_a_near_tie():
  verdict = judge([1, 3], [1, 2, 4], [0.0, 5e-5], [0.0, 0.0, 0.0])
  assert verdict.lossless and verdict.near_ties == 1


def test_a_failure_shows_position_and_both_margins():
  verdict = judge([1, 3], [1, 2], [0.0, 0.5], [0.0, 0.25])
  assert not verdict.lossless and verdict.near_ties == 0
  assert verdict.failures == [
      'a: not lossless at emitted token 1: speculative 3 (margin to the argmax'
      ' 0.5), autoregressive 2 (margin 0.25)'
  ]


def test_the_same_wrong_token_on_both_sides_is_a_failure():
  verdict = judge([1, 3], [1, 3], [0.0, 0.5])
  assert not verdict.lossless and 'emitted token 1' in verdict.failures[0]


def test_the_first_of_several_wrong_tokens_is_shown():
  verdict = judge([1, 3, 4, 5], [1, 2, 6, 7], [0.0, 5e-5, 0.5, 0.7], [0.0] * 4)
  assert verdict.near_ties == 1
  assert 'emitted token 2: speculative 4' in verdict.failures[0]


def test_a_margin_that_is_not_a_number_is_a_failure():
  verdict = judge([1, 3], [1, 3], [0.0, np.nan])
  assert not verdict.lossless
  assert 'emitted token 1' in verdict.failures[0]


def test_a_text_that_was_cut_short_is_not_lossless():
  verdict = judge([1], [1, 2], [0.0], [0.0, 0.0])
  assert not verdict.lossless
  assert 'speculative nothing' in verdict.failures[0]


def test_a_text_that_goes_on_too_long_is_not_lossless():
  verdict = judge([1, 2], [1], [0.0, 0.0], [0.0])
  assert not verdict.lossless
  assert 'autoregressive nothing' in verdict.failures[0]


def test_requests_are_judged_one_by_one():
  verdict = lossless.judge(
      ['a', 'b', 'c'], [[1], [2], [3]], [[1], [4], [5]],
      [np.array([5e-5]), np.array([0.5]), np.array([2.0])],
      [np.zeros(1)] * 3,
  )
  assert not verdict.lossless and verdict.near_ties == 1
  assert [line.split(':')[0] for line in verdict.failures] == ['b', 'c']


@pytest.mark.parametrize('a, b, index', [
    ([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1),
    ([1], [1, 2], 1), ([1, 2], [1], 1), ([], [1], 0), ([2, 1], [1], 0),
])
def test_first_difference(a, b, index):
  assert lossless.first_difference(a, b) == index
