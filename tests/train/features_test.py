"""Features from memory are those that a step would compute."""

import jax
import numpy as np
import optax
import pytest

from dflash_jax.data import batches
from dflash_jax.data import corpus
from dflash_jax.train import features
from dflash_jax.train import trainer as training
from tests import tiny


def make(loss):
  return training.Trainer(
      tiny.target()[0], tiny.drafter()[0], optax.sgd(0.1), 4, 4.0, loss
  )


def dataset(num):
  return batches.pack(
      [
          corpus.Example(
              str(i), tiny.tokens((3 + i % 4,), i), tiny.tokens((9,), 50 + i),
              True,
          )
          for i in range(num)
      ],
      16, 0,
  )


# More rows than one call computes, fewer, and a last call that is not full.
@pytest.mark.parametrize('num', [8, 3, 11])
def test_the_cache_holds_every_row(num):
  data, trainer = dataset(num), make(training.DISTILL)
  cache = features.compute(trainer, tiny.target()[1], data)
  assert cache.features.shape == (num, 16, 2, 32)
  assert cache.hidden.shape == (num, 16, 32)
  rows = np.array([num - 1, 0, 1])
  plain = features.batch(data, rows, None)
  assert plain.features is None and plain.hidden is None
  fresh = jax.jit(trainer.with_features)(tiny.target()[1], plain)
  kept = features.batch(data, rows, cache)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), fresh, kept
  )
  np.testing.assert_array_equal(kept.tokens, data.tokens[rows])
  np.testing.assert_array_equal(kept.lengths, data.lengths[rows])
  np.testing.assert_array_equal(kept.prompt_lengths, data.prompt_lengths[rows])


def test_hard_labels_need_no_hidden_states():
  data = dataset(2)
  cache = features.compute(make(training.HARD), tiny.target()[1], data)
  assert cache.hidden is None
  assert features.batch(data, np.array([1]), cache).hidden is None
