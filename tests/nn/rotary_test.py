import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.nn import rotary
from tests import naive


@jax.jit(static_argnames='theta')
def turn(x, positions, theta=1e4):
  return rotary.rotate(x, rotary.angles(positions, x.shape[-1], theta))


@pytest.mark.parametrize('head_dim, theta', [(2, 500.0), (8, 1e4), (64, 1e6)])
def test_rotation_is_complex_multiplication(head_dim, theta):
  rng = np.random.default_rng(0)
  positions = np.array([[0, 1, 2], [17, 300, 4095]])
  x = rng.normal(size=(2, 3, 5, head_dim))
  out = turn(np.float32(x), positions, theta=theta)
  exact = np.empty_like(x)
  for index in np.ndindex(x.shape[:3]):
    exact[index] = naive.rotate(x[index], positions[index[:2]], theta)
  # The angle itself is float32: at position 4095 it is off by 2e-4.
  np.testing.assert_allclose(out, exact, atol=1e-3)
  np.testing.assert_allclose(out[0], exact[0], atol=2e-6)


def test_scores_depend_on_the_distance_alone():
  rng = np.random.default_rng(1)
  query, key = rng.normal(size=(2, 1, 1, 16)).astype(np.float32)

  def score(query_position, key_position):
    turned = turn(query, np.array([query_position]))
    return np.vdot(turned, turn(key, np.array([key_position])))

  np.testing.assert_allclose(score(9, 4), score(105, 100), rtol=1e-4)
  assert abs(score(9, 4) - score(4, 9)) > 1e-3


def test_bfloat16_heads_are_turned_by_float32_angles():
  x = np.ones((1, 1, 8), jnp.bfloat16)
  out = turn(x, np.array([4095]))
  assert out.dtype == jnp.bfloat16
  exact = naive.rotate(np.ones(8), 4095, 1e4)
  np.testing.assert_allclose(np.float64(out[0, 0]), exact, atol=0.01)


def test_llama3_scaling_stretches_long_wavelengths_alone():
  """Frequency by frequency, from the published piecewise rule."""
  scaling = rotary.Llama3Scaling(8.0, 1.0, 4.0, 64)
  positions = np.array([1, 700])
  plain, scaled = (
      np.asarray(rotary.angles(jnp.asarray(positions), 16, 1e4, how), float)
      for how in (None, scaling)
  )
  kinds = set()
  for index in range(8):
    frequency = 1e4 ** (-index / 8)
    wavelength = 2 * np.pi / frequency
    if wavelength < 64 / 4.0:
      kind, exact = 'kept', frequency
    elif wavelength > 64 / 1.0:
      kind, exact = 'stretched', frequency / 8.0
    else:
      smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
      kind = 'blended'
      exact = (1 - smooth) * frequency / 8.0 + smooth * frequency
    kinds.add(kind)
    np.testing.assert_allclose(scaled[:, index], positions * exact, rtol=1e-5)
    np.testing.assert_allclose(
        plain[:, index], positions * frequency, rtol=1e-5
    )
  assert kinds == {'kept', 'blended', 'stretched'}
