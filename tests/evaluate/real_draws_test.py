"""Many rounds behind one text, by way of the models."""

import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.decode import propose
from dflash_jax.evaluate import real_draws
from dflash_jax.verifier import noise as noises
from dflash_jax.verifier import rules
from tests import tiny
from tests.verifier import law_test

LAW = law_test.law(dict(temperature=1.2, top_k=30, top_p=0.9))


def rounds(kind):
  return real_draws.Rounds(
      *tiny.target(), *tiny.drafter(tiny.DRAFTERS[kind]),
      tiny.tokens((9,), seed=3).tolist(),
  )


@pytest.mark.parametrize('rule, kind, draws', [
    (rules.rejection, 'full', True), (rules.block, 'v2', True),
    (rules.coupled, 'full', True), (rules.block, 'full', False),
])
def test_draws_follow_the_law(rule, kind, draws):
  (fits,) = rounds(kind).test(LAW, [propose.Sampler(rule, draws)], 4096, seed=1)
  for fit in fits.values():
    assert fit.p_value > 1e-3 and fit.degrees > 5


def test_one_noise_for_two_purposes_is_found_out(monkeypatch):
  monkeypatch.setattr(
      noises.Noise, 'replacement',
      lambda self, weights: self.drafts(weights[:, None])[:, 0],
  )
  (fits,) = rounds('full').test(
      LAW, [propose.Sampler(rules.rejection, True)], 20_000, seed=1
  )
  assert fits['first'].p_value < 1e-6


def test_rules_together_are_rules_alone():
  """Whatever rows of logits were kept in between."""
  samplers = [
      propose.Sampler(rule, True) for rule in (rules.rejection, rules.block)
  ]
  together = rounds('full').test(LAW, samplers, 1024, seed=2)
  alone = [rounds('full').test(LAW, [s], 1024, seed=2)[0] for s in samplers]
  distances = [
      [fit.total_variation for fits in run for fit in fits.values()]
      for run in (together, alone)
  ]
  np.testing.assert_allclose(*distances, rtol=1e-3)
  assert together[0] != together[1]


def test_the_rows_are_the_targets():
  made = rounds('full')
  made._read([(5, 7), (9, 1)])
  target, params = tiny.target()
  text = jnp.asarray([[*made._text, 9, 1]], jnp.int32)
  variables = {'params': params}
  hidden = target.apply(variables, text)[0]
  logits = target.apply(variables, hidden[:, -1], method='head')[0]
  np.testing.assert_allclose(made._rows[9, 1], logits, rtol=1e-4, atol=1e-4)
