"""The lossless check: every emitted token is the target's own choice."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from dflash_jax.evaluate import analysis


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Outcome over many requests.

  Attributes:
    lossless: no emitted token falls short of the argmax by more than a
      near-tie.
    near_ties: emitted tokens that are not the argmax, but within
      `analysis.NEAR_TIE` of it.
    failures: one sentence for each request that is not lossless.
  """

  lossless: bool
  near_ties: int
  failures: list[str]


def judge(
    names: Sequence[str],
    emitted: Sequence[Sequence[int]],
    baseline: Sequence[Sequence[int]],
    margins: Sequence[np.ndarray],
    baseline_margins: Sequence[np.ndarray],
) -> Verdict:
  """Judges greedy output by its margins; see `analysis.Teacher.margins`.

  Args:
    names: of the requests.
    emitted: tokens of the speculative decode.
    baseline: tokens of the autoregressive decode of the same prompts.
    margins: of `emitted`.
    baseline_margins: of `baseline`.
  """
  near_ties, failures = 0, []
  for name, ours, theirs, ours_short, theirs_short in zip(
      names, emitted, baseline, margins, baseline_margins
  ):
    near_ties += int(np.sum((ours_short > 0) & (ours_short < analysis.NEAR_TIE)))
    # Negated, so that a margin that is not a number is a failure too.
    wrong = np.flatnonzero(~(ours_short < analysis.NEAR_TIE))
    differ = first_difference(ours, theirs)
    # A difference without a shortfall is a near-tie that went the other way,
    # unless the shorter text is simply cut off.
    cut = differ is not None and differ == min(len(ours), len(theirs))
    if len(wrong) or cut:
      where = int(wrong[0]) if len(wrong) else differ
      failures.append(
          f'{name}: not lossless at emitted token {where}: speculative'
          f' {_at(ours, where)} (margin to the argmax {_at(ours_short, where)}),'
          f' autoregressive {_at(theirs, where)} (margin'
          f' {_at(theirs_short, where)})'
      )
  return Verdict(not failures, near_ties, failures)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
  """Index of the first token in which two texts differ, or None."""
  for index, (left, right) in enumerate(zip(a, b)):
    if left != right:
      return index
  return None if len(a) == len(b) else min(len(a), len(b))


def _at(values: Sequence, index: int) -> object:
  return values[index] if index < len(values) else 'nothing'
