import jax
import numpy as np
import pytest

from dflash_jax.nn import attention
from dflash_jax.nn import cache as kv
from tests import naive

attend_blocks = jax.jit(attention.attend_blocks)
visible = jax.jit(attention.visible, static_argnums=(2, 3))


@jax.jit
def attend(queries, keys, values, mask):
  """`attend` with keys and values as `[B, S, M, H]`."""
  return attention.attend(
      queries, kv.key_slots(keys), kv.value_slots(values), mask
  )


def random(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('heads', [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize('mask_rows', [1, 2])
def test_attend_is_a_loop_over_heads(heads, mask_rows):
  num_heads, num_kv_heads = heads
  queries = random(2, 5, num_heads, 8)
  keys, values = random(2, 2, 11, num_kv_heads, 8, seed=1)
  mask = random(mask_rows, 5, 11, seed=2) > 0
  mask[..., 3] = True
  out = attend(queries, keys, values, mask)
  exact = np.empty((2, 5, num_heads, 8))
  for b, t, n in np.ndindex(2, 5, num_heads):
    head = n // (num_heads // num_kv_heads)
    seen = mask[b % mask_rows, t]
    exact[b, t, n] = naive.attend(
        queries[b, t, n].astype(float),
        keys[b, seen, head].astype(float),
        values[b, seen, head].astype(float),
    )
  np.testing.assert_allclose(out, exact.reshape(2, 5, -1), atol=1e-5)


def test_hidden_keys_and_values_do_not_matter():
  queries, (keys, values) = random(1, 2, 2, 4), random(2, 1, 6, 1, 4, seed=1)
  mask = np.arange(6)[None, None] < np.array([[[3], [4]]])
  before = attend(queries, keys, values, mask)
  keys[:, 4:], values[:, 4:] = 1e6, -1e30
  after = attend(queries, keys, values, mask)
  np.testing.assert_array_equal(before, after)


def test_a_query_that_sees_nothing_gives_numbers():
  queries, (keys, values) = random(1, 2, 2, 4), random(2, 1, 6, 1, 4, seed=1)
  mask = np.array([[[False] * 6, [True] * 6]])
  assert np.isfinite(attend(queries, keys, values, mask)).all()


def test_large_scores_do_not_overflow():
  keys = np.zeros((1, 6, 1, 4), np.float32)
  keys[0, 1] = 1e4
  values = random(1, 6, 1, 4)
  queries = np.full((1, 2, 2, 4), 1e4, np.float32)
  out = attend(queries, keys, values, np.ones((1, 2, 6), bool))
  np.testing.assert_array_equal(
      out, np.broadcast_to(np.tile(values[0, 1, 0], 2), (1, 2, 8))
  )


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('window', [None, 1, 3, 50])
def test_visible_by_brute_force(causal, window):
  positions = np.arange(12)
  out = visible(positions[:, None], positions[None], causal, window)
  for query, key in np.ndindex(12, 12):
    expected = not (
        (causal and key > query)
        or (window is not None and query - key >= window)
        or (window is not None and key - query >= window)
    )
    assert out[query, key] == expected, (query, key)


def test_visible_broadcasts_ragged_positions():
  query = np.array([[[4], [5]], [[9], [10]]])
  out = visible(query, np.arange(12)[None, None], True, 3)
  seen = [[np.flatnonzero(row).tolist() for row in rows] for rows in out]
  assert seen == [[[2, 3, 4], [3, 4, 5]], [[7, 8, 9], [8, 9, 10]]]


@pytest.mark.parametrize('heads', [(4, 2), (3, 1)])
@pytest.mark.parametrize('num_context', [0, 7])
def test_attend_blocks_is_attend_over_the_concatenation(heads, num_context):
  num_heads, num_kv_heads = heads
  queries = random(2, 3, 4, num_heads, 6)
  context = random(2, 2, num_context, num_kv_heads, 6, seed=1)
  block = random(2, 2, 3, 4, num_kv_heads, 6, seed=2)
  context_mask = random(2, 3, 4, num_context, seed=3) > 0
  block_mask = (random(2, 3, 4, 4, seed=4) > 0) | np.eye(4, dtype=bool)
  out = attend_blocks(
      queries, tuple(context), tuple(block), context_mask, block_mask
  )
  for a in range(3):
    keys, values = (
        np.concatenate([context[i], block[i, :, a]], axis=1)
        for i in range(2)
    )
    mask = np.concatenate([context_mask[:, a], block_mask[:, a]], axis=-1)
    alone = attend(queries[:, a], keys, values, mask)
    np.testing.assert_allclose(out[:, a], alone, atol=1e-5)
