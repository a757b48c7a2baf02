"""Walks against loops, and against every path there is."""

import itertools

import jax
import numpy as np
import pytest

from dflash_jax.selector import walks


def scores(*rows, slots=4, top_k=3, seed=0):
  """Random scores; the first slot's rows are equal."""
  rng = np.random.default_rng(seed)
  out = rng.normal(size=(*rows, slots, top_k, top_k)).astype(np.float32) * 2
  out[..., 0, :, :] = out[..., 0, :1, :]
  return out


def conditionals(table):
  table = np.exp(table.astype(np.float64))
  return table / table.sum(axis=-1, keepdims=True)


def expected_length(table, path):
  """Expected number of accepted drafts of a path: a sum of prefix chances."""
  chances, before, total, prefix = conditionals(table), 0, 0.0, 1.0
  for slot, index in enumerate(path):
    prefix *= chances[slot, before, index]
    total += prefix
    before = index
  return total


def test_greedy_takes_the_best_behind_the_last():
  table = scores(2, 5)
  found = jax.jit(walks.greedy)(table)
  for row in np.ndindex(2, 5):
    before = 0
    for slot in range(4):
      before = table[row][slot, before].argmax()
      assert found[row][slot] == before


@pytest.mark.parametrize('slots, top_k', [(1, 4), (3, 4), (5, 3), (7, 2)])
def test_look_ahead_is_the_best_of_all_paths(slots, top_k):
  table = scores(20, slots=slots, top_k=top_k, seed=1)
  found = np.asarray(jax.jit(walks.look_ahead)(table))
  better_than_greedy = 0
  for row, path in zip(table, found):
    values = {
        p: expected_length(row, p)
        for p in itertools.product(range(top_k), repeat=slots)
    }
    best = max(values.values())
    np.testing.assert_allclose(values[tuple(path)], best, rtol=1e-5)
    greedy = tuple(np.asarray(jax.jit(walks.greedy)(row)))
    better_than_greedy += values[greedy] < best - 1e-6
  # On short paths the two mostly agree.
  assert better_than_greedy > 0 or slots < 5


def test_walks_agree_where_predecessors_do_not_matter():
  """Without a pair term, look-ahead too takes each slot's best candidate."""
  table = scores(10, seed=2)
  table[:] = table[..., :1, :]
  best = table[..., 0, :].argmax(axis=-1)
  for walk in (walks.greedy, walks.look_ahead):
    np.testing.assert_array_equal(jax.jit(walk)(table), best)


def test_ideal_is_gold_where_it_can_be():
  ids = np.array([[[5, 3], [2, 9], [7, 1]]])
  gold = np.array([[3, 4, 7]])
  path = jax.jit(walks.ideal)(np.array([[0, 1, 1]]), ids, gold)
  assert path.tolist() == [[1, 1, 0]]
  assert jax.jit(walks.tokens)(path, ids).tolist() == [[3, 9, 7]]
