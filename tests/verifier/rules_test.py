"""The dice of each rule, and the mistakes that chi-square must find."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.evaluate import goodness
from dflash_jax.verifier import law as laws
from dflash_jax.verifier import noise as noises
from dflash_jax.verifier import proposal as proposals
from dflash_jax.verifier import rules
from tests.verifier import law_test

DRAWS, SIZE, SLOTS = 20_000, 6, 2
LAW = law_test.law(dict(temperature=0.7, top_k=4))
COLD = law_test.law(dict(temperature=0.7))


def logits(*shape, seed):
  values = np.random.default_rng(seed).normal(size=shape) * 1.5
  return jnp.asarray(values, jnp.float32)


# Of the drafter, and of the target behind each text of up to two tokens: near
# enough that drafts are kept, and far enough that they are not.
DRAFTER = logits(SLOTS, SIZE, seed=120)
FIRST = DRAFTER[0] + 0.8 * logits(SIZE, seed=20)
SECOND = DRAFTER[1][None] + 0.8 * logits(SIZE, SIZE, seed=70)
THIRD = logits(SIZE, SIZE, SIZE, seed=3)


def target_law():
  """Joint law of two tokens."""
  first = np.exp(laws.log_probs(FIRST[None, None], LAW)[0, 0])
  second = np.exp(laws.log_probs(SECOND[:, None], law_test.law(
      *[dict(temperature=0.7, top_k=4)] * SIZE
  ))[:, 0])
  return first[:, None] * second


def rows(law):
  return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (DRAWS,)), law)


def two_tokens(rule, kind='dense', mutation=None):
  """The first two tokens of many rounds, and how many drafts they kept."""
  noise = noises.Noise(
      noises.row_keys(
          jnp.zeros(DRAWS, jnp.int32), jnp.arange(DRAWS, dtype=jnp.int32)
      ),
      jnp.full(DRAWS, 3, jnp.int32),
  )

  @jax.jit
  def run():
    q = laws.log_probs(jnp.broadcast_to(DRAFTER, (DRAWS, SLOTS, SIZE)), rows(COLD))
    if kind == 'one hot':
      drafts = jnp.argmax(q, axis=-1).astype(jnp.int32)
      proposal = proposals.one_hot(drafts)
    else:
      shared = rule is rules.coupled
      gumbel = noise.token(SLOTS, SIZE)
      if kind == 'sparse':
        # Three candidates of each slot, renormalised.
        best, ids = jax.lax.top_k(q, 3)
        best = jax.nn.log_softmax(best, axis=-1)
        gumbel = (
            jnp.take_along_axis(gumbel, ids, axis=-1) if shared
            else noise.walk(SLOTS, 3)
        )
        chosen = jnp.argmax(best + gumbel, axis=-1)[..., None]
        drafts = jnp.take_along_axis(ids, chosen, axis=-1)[..., 0]
        proposal = proposals.Proposal(best, ids)
      else:
        drafts = (
            jnp.argmax(q + gumbel, axis=-1).astype(jnp.int32) if shared
            else noise.drafts(q)
        )
        proposal = proposals.Proposal(q)
    one, two = drafts.T
    raw = jnp.stack([
        jnp.broadcast_to(FIRST, (DRAWS, SIZE)), SECOND[one], THIRD[one, two]
    ], axis=1)
    target = laws.log_probs(raw, rows(LAW))
    if mutation == 'no temperature on q':
      proposal = proposal.replace(
          log_probs=jax.nn.log_softmax(0.7 * proposal.log_probs, axis=-1)
      )
    accepted, emitted = rule(target, drafts, proposal, noise)
    if mutation == 'equality beside the ratio':
      # "The target drew the same, so keep it", on top of the rule.
      own = jnp.argmax(target + 1.0 * noise.token(SLOTS + 1, SIZE), axis=-1)
      lucky = (accepted == 0) & (own[:, 0] == one)
      accepted = jnp.where(lucky, 1, accepted)
      emitted = jnp.where(
          lucky[:, None], jnp.stack([one, own[:, 1], two], axis=1), emitted
      )
    # A round of one token goes on with the target itself.
    after = laws.log_probs(SECOND[emitted[:, 0]][:, None], rows(LAW))[:, 0]
    fresh = noises.Noise(noise.keys, noise.anchor + 50).replacement(after)
    second = jnp.where(accepted == 0, fresh, emitted[:, 1])
    return emitted[:, 0], second, accepted

  first, second, accepted = jax.device_get(run())
  counts = np.zeros((SIZE, SIZE))
  np.add.at(counts, (first, second), 1)
  return counts, accepted


@pytest.mark.parametrize('rule', [rules.rejection, rules.block, rules.coupled])
@pytest.mark.parametrize('kind', ['dense', 'sparse', 'one hot'])
def test_the_dice_follow_the_law(rule, kind):
  counts, accepted = two_tokens(rule, kind)
  assert goodness.fit(counts, target_law()).p_value > 1e-3
  assert set(accepted.tolist()) == {0, 1, 2}


@pytest.mark.parametrize('mutation', [
    'shared noise', 'no temperature on q', 'unfiltered residual',
    'wrong slot', 'equality beside the ratio',
])
def test_chi_square_finds_the_mistake(mutation, monkeypatch):
  if mutation == 'shared noise':
    # The residual draws with what drew the first draft.
    monkeypatch.setattr(
        noises.Noise, 'replacement',
        lambda self, weights: self.drafts(weights[:, None])[:, 0],
    )
  elif mutation == 'unfiltered residual':
    real = rules._at
    unfiltered = jax.nn.log_softmax(FIRST / 0.7)
    monkeypatch.setattr(rules, '_at', lambda values, slot: jnp.where(
        (slot == 0)[:, None], unfiltered, real(values, slot)
    ))
  elif mutation == 'wrong slot':
    real = proposals.Proposal.slot
    monkeypatch.setattr(
        proposals.Proposal, 'slot', lambda self, index: real(self, 1 - index)
    )
  # A drafter over few tokens leaves the others to the residual.
  kind = 'sparse' if mutation == 'unfiltered residual' else 'dense'
  counts, _ = two_tokens(rules.rejection, kind, mutation)
  assert goodness.fit(counts, target_law()).p_value < 1e-6


def test_block_keeps_more_than_rejection():
  kept = [
      two_tokens(rule)[1].mean() for rule in (rules.block, rules.rejection)
  ]
  assert kept[0] > kept[1] + 0.005


def test_a_perfect_drafter_is_kept_whole():
  target = laws.log_probs(logits(64, 3, SIZE, seed=7), jax.tree.map(
      lambda leaf: jnp.broadcast_to(leaf, (64,)), COLD
  ))
  noise = noises.Noise(
      noises.row_keys(jnp.zeros(64, jnp.int32), jnp.arange(64)),
      jnp.zeros(64, jnp.int32),
  )

  @functools.partial(jax.jit, static_argnames='rule')
  def run(target, noise, rule):
    drafts = noise.drafts(target[:, :2])
    if rule is rules.coupled:
      drafts = jnp.argmax(target[:, :2] + noise.token(2, SIZE), -1)
      drafts = drafts.astype(jnp.int32)
    return drafts, *rule(
        target, drafts, proposals.Proposal(target[:, :2]), noise
    )

  for rule in (rules.rejection, rules.block, rules.coupled):
    drafts, accepted, emitted = run(target, noise, rule)
    assert (np.asarray(accepted) == 2).all()
    np.testing.assert_array_equal(emitted[:, :2], drafts)


def test_the_proposals_agree():
  """A sparse law is the dense one with nothing elsewhere."""
  dense = np.full((2, 2, SIZE), -np.inf, np.float32)
  ids = np.array([[[4, 1], [0, 5]], [[2, 3], [3, 0]]], np.int32)
  values = np.log(np.float32([[[0.3, 0.7], [0.5, 0.5]], [[1, 0], [0.9, 0.1]]])
                  + np.float32(1e-30))
  np.put_along_axis(dense, ids, values, axis=-1)
  sparse = proposals.Proposal(jnp.asarray(values), jnp.asarray(ids))
  whole = proposals.Proposal(jnp.asarray(dense))
  drafts = jnp.asarray([[1, 5], [2, 4]], jnp.int32)
  np.testing.assert_array_equal(sparse.of(drafts), whole.of(drafts))
  weights = jax.nn.softmax(logits(2, 2, SIZE, seed=8))
  np.testing.assert_allclose(
      sparse.excess(weights), whole.excess(weights), atol=1e-7
  )
  index = jnp.asarray([1, 0])
  for field in dataclasses.fields(proposals.Proposal):
    one = getattr(sparse.slot(index), field.name)
    np.testing.assert_array_equal(
        one[:, 0], getattr(sparse, field.name)[np.arange(2), index]
    )
