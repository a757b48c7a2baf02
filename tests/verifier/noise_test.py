"""Draws depend on seed, request, position and purpose, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.evaluate import goodness
from dflash_jax.verifier import noise as noises


def noise(seeds, requests, anchors):
  as_ints = lambda values: jnp.asarray(values, jnp.int32)
  return noises.Noise(
      noises.row_keys(as_ints(seeds), as_ints(requests)), as_ints(anchors)
  )


def test_rows_do_not_know_their_neighbours():
  batch = noise([3, 3, 8], [0, 1, 0], [7, 7, 9])
  alone = noise([8], [0], [9])
  for name, sizes in (('accept', ()), ('walk', (4, 6)), ('token', (4, 6))):
    drawn = getattr(batch, name)(*sizes)
    np.testing.assert_array_equal(drawn[2], getattr(alone, name)(*sizes)[0])
  even = jnp.zeros((len(batch.anchor), 4, 1000))
  np.testing.assert_array_equal(
      batch.drafts(even)[2], alone.drafts(even[:1])[0]
  )
  assert batch.replacement(even[:, 0])[2] == alone.replacement(even[:1, 0])[0]


def test_no_two_draws_are_the_same():
  """Other seeds, requests, anchors, slots and purposes: other numbers."""
  seen, tokens = [], []
  for seed, request, anchor in ((1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6)):
    one = noise([seed], [request], [anchor])
    seen += [*one.walk(3, 8)[0], one.token(1, 8)[0]]
    # As good as different: one of so many.
    even = jnp.zeros((1, 3, 2**20))
    tokens += [*one.drafts(even)[0].tolist(), int(one.replacement(even[:, 0])[0])]
  rows = {tuple(np.ravel(row).tolist()) for row in seen}
  assert len(rows) == len(seen) and len(set(tokens)) == len(tokens)


def test_a_token_belongs_to_its_position():
  """Whatever the anchor in front of it, and the width of the block."""
  early, late = noise([1], [2], [10]), noise([1], [2], [13])
  np.testing.assert_array_equal(
      early.token(6, 9)[0, 3:], late.token(8, 9)[0, :3]
  )
  # A round's drafts are its own.
  assert not (early.walk(6, 9)[0, 3:] == late.walk(8, 9)[0, :3]).any()


def test_the_draws_are_gumbel_and_uniform():
  many = noise(np.zeros(4000), np.arange(4000), np.zeros(4000))
  uniform = np.sort(np.asarray(jax.jit(many.accept)()))
  gumbel = np.sort(np.ravel(jax.jit(lambda: many.walk(1, 1))()))
  grid = (np.arange(4000) + 0.5) / 4000
  # Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed once in a thousand.
  limit = 1.95 / np.sqrt(4000)
  assert np.abs(uniform - grid).max() < limit
  assert np.abs(np.exp(-np.exp(-gumbel)) - grid).max() < limit


@pytest.mark.parametrize('size', [5, 128, 1000])
def test_tokens_come_as_often_as_they_weigh(size):
  """Also where the vocabulary is no multiple of a group, and with zeros."""
  rng = np.random.default_rng(size)
  weights = rng.normal(size=size) * 2
  weights[rng.random(size) < 0.3] = -np.inf
  log_weights = jnp.asarray(weights, jnp.float32)
  many = noise(np.zeros(20_000), np.arange(20_000), np.zeros(20_000))
  chance = np.exp(weights) / np.exp(weights).sum()

  @jax.jit
  def draw():
    rows = jnp.broadcast_to(log_weights, (20_000, size))
    return many.drafts(rows[:, None])[:, 0], many.replacement(rows)

  drafts, replaced = draw()
  for tokens in (drafts, replaced):
    counts = np.bincount(tokens, minlength=size)
    assert goodness.fit(counts, chance).p_value > 1e-3
  assert np.mean(np.asarray(drafts == replaced)) < 2 * (chance**2).sum()
