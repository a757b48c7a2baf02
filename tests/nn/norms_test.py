import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax.nn import norms
from tests import naive


CASES = {(7,): 1e-6, (3, 7): 0.5, (2, 3, 4, 8): 1e-5}


def test_rms_norm_is_the_formula():
  rng = np.random.default_rng(0)
  x = [rng.normal(size=shape) for shape in CASES]
  scale = [rng.normal(size=shape[-1]) for shape in CASES]

  @jax.jit
  def outputs(x, scale):
    return list(map(norms.rms_norm, x, scale, CASES.values()))

  out = outputs(list(map(np.float32, x)), list(map(np.float32, scale)))
  for found, *case in zip(out, x, scale, CASES.values()):
    np.testing.assert_allclose(found, naive.norm(*case), rtol=1e-5)


def test_rms_norm_of_bfloat16_is_computed_in_float32():
  rng = np.random.default_rng(1)
  x = np.asarray(rng.normal(size=(5, 64)) * 100, jnp.bfloat16)
  scale = np.asarray(rng.normal(size=64), jnp.bfloat16)
  out = jax.jit(norms.rms_norm, static_argnums=2)(x, scale, 1e-5)
  exact = naive.norm(np.float64(x), np.float64(scale), 1e-5)
  assert out.dtype == jnp.bfloat16
  assert (np.asarray(out) == exact.astype(jnp.bfloat16)).mean() > 0.99


def test_zero_rows_stay_zero():
  zeros = np.zeros((2, 4), np.float32)
  out = jax.jit(norms.rms_norm, static_argnums=2)(zeros, zeros[0] + 1, 1e-6)
  np.testing.assert_array_equal(out, zeros)


def test_module_starts_as_a_plain_norm():
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  out, params = jax.jit(norms.RMSNorm(1e-5).init_with_output)(
      jax.random.key(0), x
  )
  assert jax.tree.map(np.shape, params) == {'params': {'scale': (3,)}}
  np.testing.assert_allclose(out, naive.norm(x, 1.0, 1e-5), rtol=1e-5)
