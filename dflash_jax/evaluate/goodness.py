"""Do draws follow a law? Pearson's chi-square, and total variation."""

from typing import NamedTuple

import numpy as np
import scipy.stats

# Below this many expected draws, cells are pooled.
_SMALLEST = 5


class Fit(NamedTuple):
  """How well counts fit probabilities.

  Attributes:
    statistic: Pearson's, over the pooled cells.
    degrees: of freedom; 0 where the law leaves one cell only.
    p_value: chance of a statistic at least so large if the law holds; 0 if
      something was drawn that the law forbids.
    total_variation: distance between the two laws over all cells. Draws of the
      law itself have about `total_variation_expected`.
    total_variation_expected: mean distance of that many draws of the law.
  """

  statistic: float
  degrees: int
  p_value: float
  total_variation: float
  total_variation_expected: float


def fit(counts: np.ndarray, probabilities: np.ndarray) -> Fit:
  """Tests counts of independent draws against a law.

  Args:
    counts: of each cell.
    probabilities: of each cell; they are normalised here.
  """
  counts = np.ravel(counts).astype(np.float64)
  law = np.ravel(probabilities).astype(np.float64)
  law /= law.sum()
  total = counts.sum()
  expected = total * law
  distance = np.abs(counts / total - law).sum() / 2
  # A binomial count is off by sqrt(2 n p q / pi) on average.
  typical = np.sqrt(law * (1 - law) / total / (2 * np.pi)).sum()
  if counts[law == 0].any():
    return Fit(np.inf, len(law), 0.0, distance, typical)
  large = expected >= _SMALLEST
  observed = np.append(counts[large], counts[~large].sum())
  wanted = np.append(expected[large], expected[~large].sum())
  if wanted[-1] < _SMALLEST:
    # The pool is small itself: it joins the smallest of the others.
    least = wanted[:-1].argmin() if len(wanted) > 1 else 0
    observed[least] += observed[-1] if len(wanted) > 1 else 0
    wanted[least] += wanted[-1] if len(wanted) > 1 else 0
    observed, wanted = observed[:-1], wanted[:-1]
  statistic = float(np.sum((observed - wanted) ** 2 / wanted))
  degrees = len(wanted) - 1
  p_value = float(scipy.stats.chi2.sf(statistic, degrees)) if degrees else 1.0
  return Fit(statistic, degrees, p_value, float(distance), float(typical))
