import jax
import numpy as np
import pytest

from dflash_jax.nn import linear

ROWS = [(), (1,), (3,), (1, 1), (1, 8), (2, 0), (4, 1), (2, 3, 5), (40, 7)]


def test_project_is_a_matrix_product():
  rng = np.random.default_rng(0)
  kernel = rng.normal(size=(9, 6))
  inputs = [rng.normal(size=(*rows, 6)) for rows in ROWS]

  @jax.jit
  def outputs(inputs, kernel):
    return [linear.project(x, kernel) for x in inputs]

  out = outputs(list(map(np.float32, inputs)), np.float32(kernel))
  for x, found in zip(inputs, out):
    np.testing.assert_allclose(found, x @ kernel.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('rows', [1, 3])
def test_project_of_long_rows(rows):
  rng = np.random.default_rng(2)
  x = rng.normal(size=(rows, 5000)).astype(np.float32)
  kernel = rng.normal(size=(3, 5000)).astype(np.float32)
  np.testing.assert_allclose(
      jax.jit(linear.project)(x, kernel), x @ kernel.T, rtol=1e-3, atol=1e-3
  )


@pytest.mark.parametrize('rows', [1, 4, 100])
def test_project_has_the_gradient_of_a_matrix_product(rows):
  rng = np.random.default_rng(1)
  x, kernel, weight = (
      rng.normal(size=shape).astype(np.float32)
      for shape in ((rows, 6), (9, 6), (rows, 9))
  )

  def total(x, kernel):
    return (linear.project(x, kernel) * weight).sum()

  of_x, of_kernel = jax.jit(jax.grad(total, (0, 1)))(x, kernel)
  np.testing.assert_allclose(of_x, weight @ kernel, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(of_kernel, weight.T @ x, rtol=1e-4, atol=1e-5)


def test_linear_owns_a_kernel_and_a_bias_where_asked():
  x = np.random.default_rng(2).normal(size=(2, 3, 4)).astype(np.float32)
  plain, biased = linear.Linear(5), linear.Linear(5, use_bias=True)
  params = jax.jit(plain.init)(jax.random.key(0), x)['params']
  assert jax.tree.map(np.shape, params) == {'kernel': (5, 4)}
  start = jax.jit(biased.init)(jax.random.key(0), x)['params']
  assert set(start) == {'kernel', 'bias'} and not np.any(start['bias'])
  bias = np.arange(5, dtype=np.float32)
  out = jax.jit(biased.apply)({'params': {**params, 'bias': bias}}, x)
  exact = x @ np.asarray(params['kernel']).T + bias
  np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-5)
