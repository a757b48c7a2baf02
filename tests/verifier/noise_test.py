"""Draws depend on seed, request, position and purpose, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax.verifier import noise as noises


def noise(seeds, requests, anchors):
  as_ints = lambda values: jnp.asarray(values, jnp.int32)
  return noises.Noise(
      noises.row_keys(as_ints(seeds), as_ints(requests)), as_ints(anchors)
  )


def test_rows_do_not_know_their_neighbours():
  batch = noise([3, 3, 8], [0, 1, 0], [7, 7, 9])
  alone = noise([8], [0], [9])
  for name, sizes in (
      ('accept', ()), ('replacement', (6,)), ('draft', (4, 6)), ('token', (4, 6)),
  ):
    drawn = getattr(batch, name)(*sizes)
    np.testing.assert_array_equal(drawn[2], getattr(alone, name)(*sizes)[0])


def test_no_two_draws_are_the_same():
  """Other seeds, requests, anchors, slots and purposes: other numbers."""
  seen = []
  for seed, request, anchor in ((1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6)):
    one = noise([seed], [request], [anchor])
    seen += [one.replacement(8), *one.draft(3, 8)[0], one.token(1, 8)[0]]
  rows = {tuple(np.ravel(row).tolist()) for row in seen}
  assert len(rows) == len(seen)


def test_a_token_belongs_to_its_position():
  """Whatever the anchor in front of it, and the width of the block."""
  early, late = noise([1], [2], [10]), noise([1], [2], [13])
  np.testing.assert_array_equal(
      early.token(6, 9)[0, 3:], late.token(8, 9)[0, :3]
  )
  # A round's drafts are its own.
  assert not (early.draft(6, 9)[0, 3:] == late.draft(8, 9)[0, :3]).any()


def test_the_draws_are_gumbel_and_uniform():
  many = noise(np.zeros(4000), np.arange(4000), np.zeros(4000))
  uniform = np.sort(np.asarray(jax.jit(many.accept)()))
  gumbel = np.sort(np.ravel(jax.jit(lambda: many.replacement(1))()))
  grid = (np.arange(4000) + 0.5) / 4000
  # Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed once in a thousand.
  limit = 1.95 / np.sqrt(4000)
  assert np.abs(uniform - grid).max() < limit
  assert np.abs(np.exp(-np.exp(-gumbel)) - grid).max() < limit
