"""The dynamic convolution against a loop over slots and channels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.drafter import convolution


def random(*shape, seed):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('taps, groups', [(1, 3), (2, 6), (2, 1), (4, 2)])
def test_convolve_is_a_loop(taps, groups):
  x = random(2, 3, 5, 6, seed=0)
  base, dynamic = random(taps, 6, seed=1), random(2, 3, 5, taps, groups, seed=2)
  found = jax.jit(convolution.convolve)(x, base, dynamic)
  exact = np.zeros(x.shape)
  for *row, slot, channel in np.ndindex(x.shape):
    row = tuple(row)
    for tap in range(min(taps, slot + 1)):
      group = channel // (6 // groups)
      weight = base[tap, channel] + dynamic[(*row, slot, tap, group)]
      exact[(*row, slot, channel)] += weight * x[(*row, slot - tap, channel)]
  np.testing.assert_allclose(found, exact, atol=1e-5)


def test_a_new_convolution_is_the_identity_to_the_bit():
  conv = convolution.DynamicConv(8, 2, 4)
  x, z = map(jnp.asarray, random(2, 3, 5, 8, seed=0))

  def both(module, x, z):
    front, back = module.coefficients(x)
    return module.front(x, front), module.back(z, back)

  (y, out), _ = conv.init_with_output(jax.random.key(0), x, z, method=both)
  np.testing.assert_array_equal(y, x)
  np.testing.assert_array_equal(out, z)


def test_coefficients_split_by_side_then_tap_then_group():
  conv = convolution.DynamicConv(4, 2, 2)
  weights = jnp.arange(8 * 4, dtype=jnp.float32).reshape(8, 4)
  params = {'base_kernel': jnp.zeros((2, 2, 4)), 'kernel_projection': weights}
  x = jnp.eye(4)[:1]
  sides = conv.apply({'params': params}, x, method='coefficients')
  np.testing.assert_array_equal(
      np.stack(sides).ravel(), weights[:, 0]
  )
  assert sides[0].shape == (1, 2, 2)
