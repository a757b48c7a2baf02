"""Divided models compute what whole ones do."""

import dataclasses

import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from dflash_jax import parallel
from dflash_jax.decode import engine
from dflash_jax.decode import session
from dflash_jax.decode import state
from dflash_jax.drafter import model
from dflash_jax.target import decoder
from tests import tiny

# Two ways for the batch, two for the heads.
MESH = parallel.mesh(2, 2)
CONFIG = dataclasses.replace(tiny.DRAFTERS['v2'], num_heads=4, num_kv_heads=2)


def divide(params):
  def put(path, leaf):
    names = tuple(part.key for part in path)
    return jax.device_put(leaf, parallel.sharding(MESH, names, leaf.shape))

  return jax.tree_util.tree_map_with_path(put, params)


def test_matrices_are_divided_where_heads_and_channels_are():
  specs = jax.tree.map(
      lambda leaf: leaf.sharding.spec, divide(tiny.target()[1])
  )
  layer = specs['layers_0']
  for name in ('q', 'k', 'v', 'gate', 'up'):
    assert layer[name]['kernel'] == P('model', None)
  for name in ('o', 'down'):
    assert layer[name]['kernel'] == P(None, 'model')
  assert specs['embedding'] == specs['head'] == P('model', None)
  assert layer['mlp_norm']['scale'] == P(None)
  # An axis that does not come out even stays whole.
  assert parallel.sharding(MESH, ('q', 'kernel'), (5, 4)).spec == P(None, None)


@pytest.mark.parametrize('drafted', [False, True])
def test_decoding_on_a_mesh_says_the_same(drafted):
  module, params = tiny.target()
  drafter, drafter_params = None, None
  if drafted:
    drafter, drafter_params = tiny.drafter(CONFIG)
  decode = engine.Engine(
      module, drafter, CONFIG.block_size if drafted else 1, ()
  )
  prompts = [tiny.tokens((n,), seed=n).tolist() for n in (5, 9, 3, 7)]
  whole = session.Session(decode, state.Params(params, drafter_params))
  divided = session.Session(decode, state.Params(
      divide(params), divide(drafter_params) if drafted else None
  ))
  ours, theirs = (s.generate(prompts, 20) for s in (divided, whole))
  assert [c.tokens for c in ours] == [c.tokens for c in theirs]
  assert [c.accepted for c in ours] == [c.accepted for c in theirs]


def test_a_divided_batch():
  module, params = tiny.target()
  tokens = tiny.tokens((4, 11))
  run = jax.jit(lambda params, tokens: module.apply({'params': params}, tokens)[0])
  placed = jax.device_put(tokens, parallel.batch_sharding(MESH))
  np.testing.assert_allclose(
      run(divide(params), placed), run(params, tokens), rtol=0, atol=1e-5
  )


def test_the_modules_know_no_other_matrices():
  """A matrix that a rule forgets would lie on every device."""
  shapes = decoder.parameter_shapes(tiny.TARGET)
  paths = jax.tree_util.tree_leaves_with_path(shapes)
  whole = {
      path[-2].key for path, leaf in paths
      if len(leaf.shape) == 2
      and not any(parallel.sharding(
          MESH, tuple(part.key for part in path), leaf.shape
      ).spec)
  }
  assert not whole
  assert model.Drafter(CONFIG).config.num_kv_heads % MESH.shape['model'] == 0
