"""The grouped search against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.nn import argmax


@pytest.mark.parametrize('size', [1, 5, 128, 129, 1000])
def test_the_first_of_the_best(size):
  """Few distinct values, so that ties lie within groups and across them."""
  values = np.random.default_rng(0).integers(0, 4, (3, 7, size))
  found = jax.jit(argmax.argmax)(jnp.asarray(values, jnp.float32))
  assert found.dtype == jnp.int32
  np.testing.assert_array_equal(found, values.argmax(axis=-1))


def test_nothing_but_minus_infinity():
  found = argmax.argmax(jnp.full((2, 300), -jnp.inf))
  assert found.tolist() == [0, 0]
