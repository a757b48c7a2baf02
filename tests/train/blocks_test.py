import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.train import blocks
from dflash_jax.train import losses

LENGTHS, PROMPTS = jnp.array([20, 9, 6]), jnp.array([4, 7, 5])
sample = jax.jit(blocks.sample_anchors, static_argnums=(3, 4))


def test_anchors_are_response_tokens_that_another_follows():
  anchors, real = sample(jax.random.key(0), LENGTHS, PROMPTS, 24, 16)
  for row, (length, prompt) in enumerate(zip(LENGTHS, PROMPTS)):
    chosen = np.asarray(anchors[row])[np.asarray(real[row])]
    allowed = range(int(prompt), int(length) - 1)
    # There are fewer candidates than draws, so each one comes exactly once.
    assert sorted(chosen) == list(allowed)


def test_no_anchor_comes_twice():
  for seed in range(5):
    anchors, real = sample(jax.random.key(seed), LENGTHS, PROMPTS, 24, 8)
    for row, flags in zip(np.asarray(anchors), np.asarray(real)):
      assert len(set(row[flags])) == flags.sum()
  # 15, 1 and 0 tokens that another follows.
  assert real.sum(axis=1).tolist() == [8, 1, 0]


def test_more_anchors_than_positions():
  anchors, real = sample(jax.random.key(0), LENGTHS, PROMPTS, 24, 100)
  assert anchors.shape == (3, 24)
  assert real.sum(axis=1).tolist() == [15, 1, 0]


def test_anchors_are_uniform():
  keys = jax.random.split(jax.random.key(1), 3000)
  anchors, real = jax.vmap(
      lambda key: sample(key, LENGTHS[:1], PROMPTS[:1], 24, 3)
  )(keys)
  assert np.asarray(real).all()
  counts = np.bincount(np.asarray(anchors).ravel(), minlength=24)[4:19]
  expected = counts.sum() / 15
  # 14 degrees of freedom; 36.1 is the 0.1% point.
  assert ((counts - expected) ** 2 / expected).sum() < 36.1


def test_labels_are_the_tokens_at_their_own_place():
  tokens = jnp.arange(100, 124)[None]
  labels, exists = blocks.labels(
      tokens, jnp.array([12]), jnp.array([[5, 9]]), 5
  )
  assert labels[0, 0].tolist() == [106, 107, 108, 109]
  assert exists[0].tolist() == [[True] * 4, [True, True, False, False]]
  assert labels[0, 1, :2].tolist() == [110, 111]


@pytest.mark.parametrize('block_size, gamma, total, last', [
    (16, 7.0, 6.631, 0.135), (10, 5.0, 4.605, 0.202), (8, 4.0, 3.735, 0.223)
])
def test_decay_weights_of_the_paper(block_size, gamma, total, last):
  weights = blocks.decay_weights(block_size, gamma)
  assert len(weights) == block_size - 1
  assert float(weights.sum()) == pytest.approx(total, abs=1e-3)
  assert float(weights[-1]) == pytest.approx(last, abs=1e-3)


def test_decay_weights_fall_by_gamma():
  weights = blocks.decay_weights(6, 2.5)
  exact = [np.exp(-(k - 1) / 2.5) for k in range(1, 6)]
  np.testing.assert_allclose(weights, exact, rtol=1e-6)


def test_losses_by_hand():
  rng = np.random.default_rng(0)
  logits, teacher = rng.normal(size=(2, 2, 3, 4, 7)).astype(np.float32)
  labels = rng.integers(0, 7, (2, 3, 4))
  log_q = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  p = np.exp(teacher) / np.exp(teacher).sum(-1, keepdims=True)
  hard = -np.take_along_axis(log_q, labels[..., None], -1)[..., 0]
  np.testing.assert_allclose(
      losses.hard(jnp.asarray(logits), jnp.asarray(labels)), hard, atol=1e-5
  )
  np.testing.assert_allclose(
      losses.distill(jnp.asarray(logits), jnp.asarray(teacher)),
      -(p * log_q).sum(-1), atol=1e-5,
  )
  weights = jnp.asarray(rng.uniform(size=(2, 3, 4)), jnp.float32)
  assert float(losses.weighted_mean(jnp.asarray(hard), weights)) == (
      pytest.approx(np.average(hard, weights=weights), abs=1e-5)
  )
  assert float(losses.weighted_mean(jnp.asarray(hard), 0 * weights)) == 0
