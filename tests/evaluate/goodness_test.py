import numpy as np

from dflash_jax.evaluate import goodness


def test_draws_of_the_law_fit_and_others_do_not():
  rng = np.random.default_rng(0)
  law = rng.dirichlet(np.full(40, 0.3))
  other = 0.97 * law + 0.03 / 40
  values = [
      [goodness.fit(rng.multinomial(20_000, p), law) for _ in range(200)]
      for p in (law, other)
  ]
  good, bad = ([f.p_value for f in fits] for fits in values)
  # P-values of a law that holds are uniform.
  assert abs(np.mean(good) - 0.5) < 0.07 and np.mean(np.less(good, 0.1)) < 0.17
  assert np.mean(np.less(bad, 1e-3)) > 0.9
  distances = [f.total_variation for f in values[0]]
  typical = values[0][0].total_variation_expected
  assert abs(np.mean(distances) - typical) < 0.05 * typical


def test_a_known_statistic():
  fit = goodness.fit(np.array([30, 50, 20]), np.array([0.25, 0.5, 0.25]))
  assert fit.statistic == 25 / 25 + 0 + 25 / 25 and fit.degrees == 2
  assert abs(fit.p_value - np.exp(-1)) < 1e-12
  assert abs(fit.total_variation - 0.05) < 1e-12


def test_small_cells_are_pooled():
  law = np.array([0.5, 0.498, 0.001, 0.001])
  fit = goodness.fit(np.array([500, 497, 3, 0]), law)
  # Two cells of one expected draw each, pooled with the smaller of the others.
  assert fit.degrees == 1
  law = np.array([0.5, 0.492, 0.004, 0.004])
  assert goodness.fit(np.array([500, 492, 8, 0]), law).degrees == 2


def test_what_the_law_forbids_and_what_it_leaves_no_choice():
  assert goodness.fit(np.array([9, 1]), np.array([1.0, 0.0])).p_value == 0
  fit = goodness.fit(np.array([10, 0]), np.array([1.0, 0.0]))
  assert fit.p_value == 1 and fit.degrees == 0
