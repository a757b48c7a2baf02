"""Candidates and pair scores, by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.drafter import codebooks
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model
from dflash_jax.selector import module
from dflash_jax.selector import walks
from tests import tiny

CONFIG = tiny.DRAFTERS['v2']
PROJECTED = dataclasses.replace(CONFIG, selector_projected=True)


def random(*shape, seed):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=shape), jnp.float32)


EMBEDDING = random(64, 32, seed=9)


def embed(tokens):
  return jnp.take(EMBEDDING, tokens, axis=0)


def pair_scores(config, params, hidden, logits, anchor):
  """`(unary, candidates, scores)`."""
  unary, ids = module.candidates(logits, config.selector_top_k)
  scores = model.Drafter(config).apply(
      {'params': params}, hidden, unary, ids, anchor, embed,
      method='pair_scores',
  )
  return unary, ids, scores


def test_candidates_are_the_best_and_ties_go_to_the_lower_id():
  logits = jnp.array([[[1, 4, 4, 0, 9], [7, 7, 7, 7, 7]]], jnp.float32)
  unary, ids = module.candidates(logits, 3)
  assert ids.tolist() == [[[4, 1, 2], [0, 1, 2]]]
  assert unary.tolist() == [[[9, 4, 4], [7, 7, 7]]]


def test_no_vocabulary_is_sorted():
  """Whatever becomes of the candidates; XLA is keen to."""
  _, params = tiny.drafter(CONFIG)
  program = jax.jit(lambda *inputs: pair_scores(CONFIG, params, *inputs)[2])
  compiled = program.lower(
      random(2, 4, 32, seed=0), random(2, 4, 64, seed=1), jnp.array([11, 3])
  ).compile().as_text()
  assert 'TopK' in compiled and ' sort(' not in compiled


def test_pair_scores_by_hand():
  _, params = tiny.drafter(CONFIG)
  hidden, logits = random(2, 4, 32, seed=0), random(2, 4, 64, seed=1)
  anchor = jnp.array([11, 3])
  unary, ids, scores = pair_scores(CONFIG, params, hidden, logits, anchor)
  part = jax.tree.map(np.asarray, params['selector'])
  top_k = CONFIG.selector_top_k
  assert scores.shape == (2, 4, top_k, top_k)
  for row, slot, a, b in np.ndindex(scores.shape):
    before = anchor[row] if slot == 0 else int(ids[row, slot - 1, a])
    token = int(ids[row, slot, b])
    exact = logits[row, slot, token] + np.sum(
        part['predecessor_codebook'][before]
        * (part['hidden_projection'] @ hidden[row, slot])
        * part['successor_codebook'][token]
    )
    np.testing.assert_allclose(scores[row, slot, a, b], exact, atol=1e-4)
    assert unary[row, slot, b] == logits[row, slot, token]


@pytest.mark.parametrize('config', [CONFIG, PROJECTED])
def test_a_new_selector_walks_along_the_argmax(config):
  params = initialize.from_scratch(config, jax.random.key(0))
  logits = random(2, 4, 64, seed=3)
  _, ids, scores = pair_scores(
      config, params, random(2, 4, 32, seed=2), logits, jnp.array([1, 2])
  )
  for walk in (walks.greedy, walks.look_ahead):
    np.testing.assert_array_equal(
        walks.tokens(walk(scores), ids), logits.argmax(axis=-1)
    )


def test_codebooks_multiplied_out_score_the_same():
  _, params = tiny.drafter(PROJECTED)
  inputs = random(2, 4, 32, seed=0), random(2, 4, 64, seed=1), jnp.array([5, 6])
  *_, projected = pair_scores(PROJECTED, params, *inputs)
  config, free = codebooks.multiply_out(PROJECTED, params, EMBEDDING)
  assert config == CONFIG
  assert free['selector']['predecessor_codebook'].shape == (64, 3)
  *_, scores = pair_scores(config, free, *inputs)
  np.testing.assert_allclose(scores, projected, rtol=1e-4, atol=1e-4)
  assert codebooks.multiply_out(config, free, EMBEDDING) == (config, free)
