"""The sampling law against sorting, written out."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.verifier import law as laws

NEUTRAL = dict(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
    presence_penalty=0.0, frequency_penalty=0.0,
)
INTS = {'top_k'}


def law(*rows):
  """A batch of laws, each given as what it changes."""
  return laws.Law(**{
      field.name: jnp.asarray(
          [(NEUTRAL | row)[field.name] for row in rows],
          jnp.int32 if field.name in INTS else jnp.float32,
      )
      for field in dataclasses.fields(laws.Law)
  })


def naive(logits, temperature, top_k, top_p, min_p, **_):
  """Probabilities of one row, in float64, by sorting."""
  logits = np.asarray(logits, np.float64)
  order = np.lexsort((np.arange(len(logits)), -logits))
  if temperature == 0:
    probs = np.zeros(len(logits))
    probs[order[0]] = 1
    return probs
  scaled = logits / np.float32(temperature)

  def softmax():
    e = np.exp(scaled - scaled.max())
    return e / e.sum()

  if top_k:
    scaled[order[top_k:]] = -np.inf
  if top_p < 1:
    ahead = np.cumsum(softmax()[order]) - softmax()[order]
    scaled[order[ahead >= np.float32(top_p)]] = -np.inf
  probs = softmax()
  scaled[probs < np.float32(min_p) * probs.max()] = -np.inf
  return softmax()


run = jax.jit(laws.log_probs)


@pytest.mark.parametrize('seed, ties', [(0, False), (1, True), (2, True)])
def test_against_sorting(seed, ties):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(3, 257)).astype(np.float32) * 3
  if ties:
    logits = np.round(logits)  # Signed zeros, too.
  grid = [
      dict(temperature=t, top_k=k, top_p=p, min_p=m)
      for t, k, p, m in itertools.product(
          (0.0, 0.5, 1.0, 2.0), (0, 1, 5, 300), (0.1, 0.73, 1.0), (0.0, 0.2)
      )
  ]
  # One batch of all settings: rows do not touch each other.
  batch = np.broadcast_to(logits, (len(grid), 3, 257))
  out = np.exp(np.asarray(run(jnp.asarray(batch), law(*grid))))
  for row, settings in enumerate(grid):
    for position in range(3):
      expected = naive(logits[position], **NEUTRAL | settings)
      np.testing.assert_array_equal(
          out[row, position] > 0, expected > 0, str(settings)
      )
      np.testing.assert_allclose(
          out[row, position], expected, rtol=2e-5, atol=1e-7
      )


def test_a_cut_among_equals_keeps_the_lower_ids():
  logits = jnp.asarray([[[1.0, 2.0, 1.0, 1.0, 2.0]]])

  def kept(**settings):
    return np.flatnonzero(np.exp(run(logits, law(settings))[0, 0])).tolist()

  assert kept(top_k=3) == [0, 1, 4]
  assert kept(top_k=1) == kept(temperature=0.0) == [1]
  # e / (2 e + 3) = 0.32 each of the best, 0.12 each of the rest.
  assert kept(top_p=0.33) == [1, 4]
  assert kept(top_p=0.70) == [0, 1, 4]
  assert kept(top_p=0.80) == [0, 1, 2, 4]
  assert kept(min_p=0.36) == [0, 1, 2, 3, 4]
  assert kept(min_p=0.37) == [1, 4]


def test_filters_come_in_the_documented_order():
  """Top-p sees what top-k left; the other way round, less would stay."""
  logits = jnp.log(jnp.asarray([[[0.4, 0.3, 0.2, 0.1]]]))
  out = np.exp(run(logits, law(dict(top_k=2, top_p=0.55))))
  np.testing.assert_array_equal(out[0, 0] > 0, [True, False, False, False])
  out = np.exp(run(logits, law(dict(top_k=2, top_p=0.58))))
  np.testing.assert_array_equal(out[0, 0] > 0, [True, True, False, False])
  # Temperature first: flattened, the best of them weighs less than 0.45.
  hot = law(dict(temperature=4.0, top_p=0.3))
  assert (np.exp(run(logits, hot))[0, 0] > 0).sum() == 2


def test_all_of_the_vocabulary_at_top_p_1():
  logits = jnp.linspace(0, -60, 5000)[None, None]
  assert (run(logits, law(dict(top_p=1.0))) > -jnp.inf).all()


def test_penalties():
  logits = jnp.asarray([[[2.0, -2.0, 1.0, -1.0], [2.0, -2.0, 1.0, -1.0]]])
  in_prompt = jnp.asarray([[True, True, False, False]])
  counts = jnp.asarray([[[0, 0, 0, 0], [1, 0, 3, 0]]])
  settings = dict(
      repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5
  )
  out = laws.penalise(logits, law(settings), in_prompt, counts)
  np.testing.assert_allclose(
      out[0], [[1, -4, 1, -1], [1 - 0.75, -4, 0.5 - 1.75, -1]]
  )
  same = laws.penalise(logits, law({}), in_prompt, counts)
  np.testing.assert_array_equal(same, logits)


@pytest.mark.parametrize('ties', [False, True])
def test_a_large_vocabulary(ties):
  """The search for a cut-off starts with the best groups: rows for which that
  is enough, others for which it is not, and neither touches the other."""
  rng = np.random.default_rng(5)
  logits = rng.normal(size=(2, 20_011)).astype(np.float32)
  logits[0, 7_000:7_400] += 12
  if ties:
    logits = np.round(logits, 1)
  grid = [
      dict(top_k=k, top_p=p)
      for k, p in ((0, 0.9), (0, 0.3), (50, 1.0), (9_000, 1.0), (40, 0.8))
  ]
  batch = jnp.asarray(np.broadcast_to(logits, (len(grid), 2, 20_011)))
  out = np.asarray(run(batch, law(*grid)))
  for row, settings in enumerate(grid):
    alone = run(batch[:1], law(settings))
    np.testing.assert_array_equal(out[row], alone[0])
    for position in range(2):
      expected = naive(logits[position], **NEUTRAL | settings)
      # Float32 sums of thousands may end a token early or late.
      differ = np.sum((out[row, position] > -np.inf) != (expected > 0))
      assert differ <= (2 if settings['top_p'] < 1 else 0), settings
      np.testing.assert_allclose(
          np.exp(out[row, position]), expected, rtol=1e-3, atol=1e-4
      )
