import jax
import numpy as np
import pytest

from dflash_jax.decode import state as states


@pytest.mark.parametrize('length', [1, 4])
def test_put_row_is_slice_assignment(length):
  rng = np.random.default_rng(0)
  put_row = jax.jit(states.put_row)
  for _ in range(20):
    buffer = rng.integers(0, 100, (5, 9)).astype(np.int32)
    new = rng.integers(100, 200, (5, length)).astype(np.int32)
    count = rng.integers(0, length + 1, 5).astype(np.int32)
    start = rng.integers(0, 9 - count + 1).astype(np.int32)
    exact = buffer.copy()
    for b in range(5):
      exact[b, start[b] : start[b] + count[b]] = new[b, : count[b]]
    np.testing.assert_array_equal(put_row(buffer, start, new, count), exact)


def test_params_without_a_drafter_are_a_tree():
  params = states.Params({'a': np.ones(2)})
  assert params.drafter is None and len(jax.tree.leaves(params)) == 1
