"""Every rule, proposal, temperature and filter leaves the target's law."""

import dataclasses
import itertools

import numpy as np
import pytest

from dflash_jax.decode import propose
from dflash_jax.evaluate import exact_law
from dflash_jax.verifier import rules
from tests import tiny
from tests.verifier import law_test

RATIOS = rules._ratios
VOCABULARY, TOKENS = 5, 3
TARGET = dataclasses.replace(tiny.TARGET, vocab_size=VOCABULARY)
BASE = dict(
    vocab_size=VOCABULARY, mask_token_id=VOCABULARY - 1, block_size=3,
)
DRAFTERS = {
    'dense': dataclasses.replace(tiny.DRAFTER, **BASE),
    'sparse': dataclasses.replace(
        tiny.DRAFTERS['v2'], selector_top_k=3, **BASE
    ),
}
LAWS = [
    dict(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product(
        (0.5, 1.0, 2.0), (0, 3), (0.8, 1.0), (0.0, 0.3)
    )
] + [dict(temperature=0.0)]


def pair(kind):
  return exact_law.Pair(
      *tiny.target(TARGET), *tiny.drafter(DRAFTERS[kind]), [1, 3, 0], TOKENS
  )


def distance(one, other):
  return np.abs(one - other).sum() / 2


@pytest.mark.parametrize('rule', [rules.rejection, rules.block])
@pytest.mark.parametrize('kind', DRAFTERS)
@pytest.mark.parametrize('draws, filters', [
    (False, {}), (True, {}), (True, {'draft_top_k': 2, 'draft_top_p': 0.9}),
])
def test_the_law_is_the_targets(rule, kind, draws, filters):
  both = pair(kind)
  sampler = propose.Sampler(rule, draws, **filters)
  shapes = set()
  for settings in LAWS:
    law = law_test.law(settings)
    target = both.target_law(law)
    shapes.add(tuple(np.round(target.ravel(), 3)))
    assert abs(target.sum() - 1) < 1e-6
    assert distance(both.output_law(law, sampler), target) < 1e-6, settings
  # The settings do differ.
  assert len(shapes) > len(LAWS) / 2


def test_block_verification_keeps_at_least_as_much():
  both = pair('dense')
  gains = []
  for settings in LAWS[:-1]:
    law = law_test.law(settings)
    whole, single = (
        both.accepted(law, propose.Sampler(rule, True))
        for rule in (rules.block, rules.rejection)
    )
    gains.append(whole - single)
  assert np.min(gains) > -1e-6 and np.max(gains) > 1e-3


@pytest.mark.parametrize('mutation', [
    'no temperature', 'unfiltered residual', 'wrong slot', 'free acceptance',
])
def test_a_wrong_rule_is_found_out(mutation, monkeypatch):
  both = pair('dense')
  law = law_test.law(dict(temperature=0.5, top_k=3))
  sampler = propose.Sampler(rules.rejection, True)
  assert distance(both.output_law(law, sampler), both.target_law(law)) < 1e-6
  if mutation == 'no temperature':
    # q of the acceptance at temperature 1, while drafts come at 0.5.
    real = exact_law.proposals.Proposal.of
    monkeypatch.setattr(
        exact_law.proposals.Proposal, 'of',
        lambda self, drafts: 0.5 * real(self, drafts),
    )
  elif mutation == 'unfiltered residual':
    monkeypatch.setattr(
        exact_law.rules, '_at', lambda values, slot: np.log(
            np.full((len(values), VOCABULARY), 1 / VOCABULARY, np.float32)
        ),
    )
  elif mutation == 'wrong slot':
    real = exact_law.proposals.Proposal.slot
    monkeypatch.setattr(
        exact_law.proposals.Proposal, 'slot',
        lambda self, index: real(self, index * 0),
    )
  else:
    monkeypatch.setattr(
        exact_law.rules, '_ratios',
        lambda *inputs: 1.2 * RATIOS(*inputs),
    )
  wrong = pair('dense').output_law(law, sampler)
  assert distance(wrong, both.target_law(law)) > 1e-3
