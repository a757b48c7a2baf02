"""Sampling through the engine: reproducible, batch-blind, true to its law."""

import dataclasses

import jax
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.decode import engine
from dflash_jax.decode import propose
from dflash_jax.decode import sampling as samplings
from dflash_jax.decode import session as sessions
from dflash_jax.decode import state
from dflash_jax.drafter import model
from dflash_jax.verifier import rules
from tests import tiny

PROMPTS = [tiny.tokens((n,), seed=n).tolist() for n in (5, 9, 3, 7)]
PENALISED = dict(
    repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2
)
ASKED = [
    samplings.Sampling(temperature=0.7, seed=4, request=0),
    samplings.Sampling(temperature=0.0, seed=4, request=1),
    samplings.Sampling(top_k=9, top_p=0.8, seed=4, request=2, **PENALISED),
    samplings.Sampling(temperature=1.4, min_p=0.1, seed=9, request=0),
]
PLAIN = [dataclasses.replace(s, **{k: getattr(samplings.Sampling(), k)
         for k in PENALISED}) for s in ASKED]


def session(rule, kind='full', block_size=5, draws=True, stop_ids=(),
            penalties=True, seed=1):
  """A session that samples; kind None is autoregressive."""
  target, target_params = tiny.target()
  sampler = propose.Sampler(rule, draws, penalties=penalties)
  if kind is None:
    made = engine.Engine(target, None, 1, stop_ids, sampler=sampler)
    return sessions.Session(made, state.Params(target_params))
  config = dataclasses.replace(tiny.DRAFTERS[kind], block_size=block_size)
  made = engine.Engine(
      target, model.Drafter(config), block_size, stop_ids, sampler=sampler
  )
  params = tiny.drafter(config, seed)[1]
  return sessions.Session(made, state.Params(target_params, params))


@pytest.mark.parametrize('kind, block_size, draws', [
    ('full', 2, True), ('v2', 5, True), ('full', 8, True), ('v2', 8, False),
])
def test_coupled_sampling_is_autoregressive_sampling(kind, block_size, draws):
  """Stop tokens, a budget and penalties included, whatever the drafter."""
  stop_ids = (7, 20)
  plain = session(rules.coupled, None, stop_ids=stop_ids)
  ours = session(
      rules.coupled, kind, block_size, draws, stop_ids, seed=block_size
  )
  expected = plain.generate(PROMPTS, 23, ASKED)
  decoded = ours.generate(PROMPTS, 23, ASKED)
  assert [c.tokens for c in decoded] == [c.tokens for c in expected]
  finished = [c.finished for c in expected]
  assert [c.finished for c in decoded] == finished
  assert True in finished and False in finished
  assert len({tuple(c.tokens) for c in expected}) == len(PROMPTS)
  for one, other in zip(decoded, expected):
    np.testing.assert_allclose(
        one.log_probs, other.log_probs, rtol=0, atol=1e-4
    )


def test_greedy_is_temperature_0():
  plain = tiny.session().generate(PROMPTS, 20)
  cold = [samplings.Sampling(temperature=0.0)] * len(PROMPTS)
  greedy = tiny.session(5).generate(PROMPTS, 20)
  for rule, draws in (
      (rules.rejection, True), (rules.block, False), (rules.coupled, True)
  ):
    decode = session(rule, draws=draws, penalties=False)
    ours = decode.generate(PROMPTS, 20, cold)
    assert [c.tokens for c in ours] == [c.tokens for c in plain]
    assert [c.accepted for c in ours] == [c.accepted for c in greedy]


@pytest.mark.parametrize('rule, kind', [
    (rules.rejection, 'full'), (rules.block, 'v2'), (rules.coupled, 'v2'),
])
def test_a_request_does_not_know_its_neighbours(rule, kind):
  decode = session(rule, kind)
  together = decode.generate(PROMPTS, 20, ASKED)
  turned = decode.generate(PROMPTS[::-1], 20, ASKED[::-1])[::-1]
  for row, prompt in enumerate(PROMPTS):
    (alone,) = decode.generate([prompt], 20, [ASKED[row]])
    pieces = list(decode.stream(prompt, 20, ASKED[row]))
    for other in (alone, turned[row]):
      assert other.tokens == together[row].tokens
      assert other.accepted == together[row].accepted
    assert sum(pieces, []) == alone.tokens


def test_seeds_and_requests_make_other_texts():
  decode = session(rules.block, penalties=False)
  asked = [
      samplings.Sampling(seed=1), samplings.Sampling(seed=1),
      samplings.Sampling(seed=2), samplings.Sampling(seed=1, request=1),
  ]
  texts = [c.tokens for c in decode.generate([PROMPTS[0]] * 4, 20, asked)]
  assert texts[0] == texts[1]
  assert texts[2] != texts[0] != texts[3] != texts[2]


@pytest.mark.parametrize('penalties', [False, True])
def test_log_probs_are_the_models_own(penalties):
  """Teacher-forced, before any law; penalties change the text alone."""
  asked = ASKED if penalties else PLAIN
  decode = session(rules.block, 'v2', penalties=penalties)
  target, params = tiny.target()

  @jax.jit
  def log_probs(text):
    bound = target.bind({'params': params})
    return jax.nn.log_softmax(bound.head(bound(text[None])[0])[0])

  for prompt, completion in zip(PROMPTS, decode.generate(PROMPTS, 20, asked)):
    text = np.array([*prompt, *completion.tokens])
    padded = np.pad(text, (0, 40 - len(text))).astype(np.int32)
    exact = log_probs(padded)[np.arange(len(text) - 1), text[1:]]
    np.testing.assert_allclose(
        completion.log_probs, exact[len(prompt) - 1 :], rtol=0, atol=1e-4
    )


def test_overlap_predicts_acceptance():
  """Of slots reached: expected and accepted, by token-wise rejection."""
  decode = session(rules.rejection, penalties=False)
  asked = [
      samplings.Sampling(temperature=1.5, seed=seed) for seed in range(64)
  ]
  done = decode.generate([PROMPTS[1]] * 64, 30, asked)
  expected = sum(sum(c.overlap) for c in done)
  accepted = sum(sum(c.accepted) for c in done)
  # A sum of independent coins: three deviations.
  assert abs(accepted - expected) < 3 * np.sqrt(expected)
  assert accepted > 50
  assert tiny.session(5).generate(PROMPTS, 4)[0].overlap is None


@pytest.mark.parametrize('wrong, message', [
    ({'temperature': -0.1}, 'temperature is -0.1; it must be at least 0'),
    ({'temperature': float('nan')}, 'temperature is nan'),
    ({'top_k': -1}, 'top_k is -1'),
    ({'top_p': 0.0}, 'top_p is 0.0; it must be above 0'),
    ({'top_p': 1.1}, 'top_p is 1.1'),
    ({'min_p': 1.5}, 'min_p is 1.5'),
    ({'repetition_penalty': 0.0}, 'repetition_penalty is 0.0'),
    ({'seed': -1}, 'seed is -1'),
])
def test_settings_out_of_range(wrong, message):
  with pytest.raises(errors.UserError, match=message):
    samplings.Sampling(**wrong)


def test_a_session_and_its_requests_agree():
  with pytest.raises(ValueError, match='engine with a sampler'):
    tiny.session(5).generate(PROMPTS, 4, PLAIN)
  decode = session(rules.block, penalties=False)
  with pytest.raises(ValueError, match='engine with a sampler'):
    decode.generate(PROMPTS, 4)
  with pytest.raises(ValueError, match='for each prompt'):
    decode.generate(PROMPTS, 4, PLAIN[:2])
  with pytest.raises(ValueError, match='need a sampler with penalties'):
    decode.generate(PROMPTS, 4, ASKED)
