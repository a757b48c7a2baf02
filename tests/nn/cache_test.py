import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.nn import cache as kv
from tests import tiny


@jax.jit
def written(cache, keys, values):
  """The cache with layer 1 written."""
  keys, values = kv.write(cache, 1, keys, values)
  return cache.replace(
      keys=(cache.keys[0], keys), values=(cache.values[0], values)
  )


@pytest.mark.parametrize('length', [1, 3, 8])
def test_write_puts_each_row_behind_its_own_length(length):
  rng = np.random.default_rng(0)
  blank = kv.KVCache.create(2, 4, 8, 2, 3)
  cache = jax.tree.map(
      lambda x: rng.normal(size=x.shape).astype(x.dtype), blank
  )
  start = np.minimum([0, 5, 2, 7], 8 - length).astype(np.int32)
  cache = cache.replace(length=start)
  new = rng.normal(size=(2, 4, length, 2, 3)).astype(np.float32)
  out = written(cache, *new)
  np.testing.assert_array_equal(out.length, start)
  for kind in range(2):
    exact = np.array(tiny.cache_rows(cache, 1)[kind])
    for b, t in np.ndindex(4, length):
      exact[b, start[b] + t] = new[kind, b, t]
    np.testing.assert_array_equal(tiny.cache_rows(out, 1)[kind], exact)
    np.testing.assert_array_equal(
        tiny.cache_rows(out, 0)[kind], tiny.cache_rows(cache, 0)[kind]
    )


def test_write_keeps_the_dtype_of_the_cache():
  cache = kv.KVCache.create(2, 1, 2, 1, 2, jnp.bfloat16)
  cache = cache.replace(length=cache.length + 1)
  new = np.ones((1, 1, 1, 2), np.float32)
  for rows in tiny.cache_rows(written(cache, new, new), 1):
    assert rows.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(rows[0, :, 0]), [[0, 0], [1, 1]])


def test_an_empty_cache():
  cache = kv.KVCache.create(3, 2, 16, 4, 8, jnp.bfloat16)
  assert cache.capacity == 16
  assert len(cache.keys) == len(cache.values) == 3
  for layer in range(3):
    for rows in tiny.cache_rows(cache, layer):
      assert rows.shape == (2, 16, 4, 8) and rows.dtype == jnp.bfloat16
  assert cache.length.tolist() == [0, 0] and cache.length.dtype == jnp.int32
  # A pytree: it goes through jit and comes back as itself.
  again = jax.jit(lambda cache: cache.replace(length=cache.length + 1))(cache)
  assert isinstance(again, kv.KVCache) and again.length.tolist() == [1, 1]
