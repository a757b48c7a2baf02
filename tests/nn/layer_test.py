import functools

import jax
import numpy as np
import pytest

from dflash_jax.nn import layer as layers
from tests import naive
from tests import tiny


@pytest.mark.parametrize(
    'qkv_bias, qk_norm', [(False, False), (True, False), (False, True)]
)
def test_pieces_of_a_layer(qkv_bias, qk_norm):
  config = tiny.TARGET
  layer = layers.DecoderLayer(
      32, 4, 2, 8, 48, config.norm_eps, config.rope_theta,
      qkv_bias=qkv_bias, qk_norm=qk_norm,
  )
  x = np.random.default_rng(0).normal(size=(2, 3, 32)).astype(np.float32)
  attended = np.random.default_rng(1).normal(size=(2, 3, 32))
  positions = np.array([[0, 1, 2], [40, 41, 42]])

  def pieces(layer, x, attended, positions):
    keys, values = layer.keys_values(x, positions)
    return layer.queries(x, positions), keys, values, layer.finish(x, attended)

  arguments = x, np.float32(attended), positions
  init = functools.partial(layer.init, method=pieces)
  shapes = jax.eval_shape(init, jax.random.key(0), *arguments)
  params = tiny.fill(shapes['params'], 2)
  apply = jax.jit(functools.partial(layer.apply, method=pieces))
  q, k, v, out = apply({'params': params}, *arguments)

  wide = naive.double(params)
  assert ('bias' in wide['q']) == qkv_bias and ('q_norm' in wide) == qk_norm
  assert 'bias' not in wide['o'] and 'v_norm' not in wide
  for b, t in np.ndindex(2, 3):
    at = int(positions[b, t])
    for name, value in ('q', q), ('k', k), ('v', v):
      exact = naive.heads(config, wide, name, x[b, t].astype(float), at)
      np.testing.assert_allclose(value[b, t], exact, atol=2e-5)
    hidden = x[b, t] + wide['o']['kernel'] @ attended[b, t]
    normed = naive.norm(hidden, wide['mlp_norm']['scale'], config.norm_eps)
    gate = wide['gate']['kernel'] @ normed
    silu = gate / (1 + np.exp(-gate))
    hidden += wide['down']['kernel'] @ (silu * (wide['up']['kernel'] @ normed))
    np.testing.assert_allclose(out[b, t], hidden, atol=1e-4)
