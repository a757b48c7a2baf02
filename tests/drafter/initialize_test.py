import dataclasses
import functools

import jax
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model
from dflash_jax.target import decoder
from tests import naive
from tests import tiny

# The last tap, block 1, feeds block 2: the first that a drafter takes over.
CONFIG = dataclasses.replace(
    tiny.DRAFTER, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
    rope_theta=1e4, target_layer_ids=(0, 1),
)
TOKENS = tiny.tokens((2, 9), seed=8)
KEY = jax.random.key(0)


@functools.cache
def made(qk_norm, num_layers=2):
  """`(target config, target parameters, drafter parameters)`."""
  target_config = dataclasses.replace(tiny.TARGET, qk_norm=qk_norm)
  module, params = tiny.target(target_config)
  config = dataclasses.replace(
      CONFIG, num_layers=num_layers,
      layer_types=CONFIG.layer_types[:1] * num_layers,
  )
  start = jax.jit(
      lambda *arguments: initialize.from_target(config, module, *arguments)
  )
  return target_config, params, start(params, TOKENS, KEY)


def equal(found, expected):
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('qk_norm', [False, True])
def test_what_a_drafter_takes_over(qk_norm):
  _, theirs, ours = made(qk_norm)
  scratch = functools.partial(initialize.from_scratch, CONFIG)
  shapes = jax.eval_shape(scratch, jax.random.key(0))
  assert jax.tree.map(np.shape, ours) == jax.tree.map(np.shape, shapes)
  equal(ours['fc']['kernel'], np.eye(32, 64, 32))
  equal(ours['context_norm']['scale'], np.ones(32))
  equal(ours['final_norm']['scale'], theirs['final_norm']['scale'])
  for index, source in enumerate((2, 3)):
    layer, other = ours[f'layers_{index}'], theirs[f'layers_{source}']
    for name in ('o', 'gate', 'up', 'down'):
      equal(layer[name]['kernel'], other[name]['kernel'])
    equal(layer['mlp_norm']['scale'], other['mlp_norm']['scale'])
    equal(layer['attention_norm']['scale'], np.ones(32))
    if qk_norm:
      for name in ('q_norm', 'k_norm'):
        equal(layer[name]['scale'], other[name]['scale'])


@pytest.mark.parametrize('num_layers', [2, 4])
def test_norms_are_the_root_mean_square_of_the_targets_heads(num_layers):
  """With 4 layers the first one's input is the embedding itself."""
  config, theirs, ours = made(False, num_layers)
  wide = naive.double(theirs)
  inputs = []
  for row in TOKENS:
    _, blocks = naive.target(config, theirs, row)
    inputs.append([wide['embedding'][row], *blocks])
  for index in range(num_layers):
    source = 4 - num_layers + index
    layer = wide[f'layers_{source}']
    scale = layer['attention_norm']['scale']
    rows = naive.norm(
        np.concatenate([row[source] for row in inputs]), scale, config.norm_eps
    )
    for name in ('q', 'k'):
      heads = rows @ layer[name]['kernel'].T
      np.testing.assert_allclose(
          ours[f'layers_{index}'][f'{name}_norm']['scale'],
          np.full(8, np.sqrt(np.mean(heads**2))), rtol=1e-4,
      )


@pytest.mark.parametrize('qk_norm', [False, True])
def test_injected_keys_are_the_targets_own(qk_norm):
  """Of the block that reads the tapped stream: the drafter's first layer.

  Values are equal. So are keys where the target norms them; otherwise each
  head has the same direction, and the common level for its length.
  """
  config, theirs, ours = made(qk_norm)
  target, drafter = decoder.Decoder(config), model.Drafter(CONFIG)

  @jax.jit
  def caches(theirs, ours, tokens):
    _, features, full = target.apply(
        {'params': theirs}, tokens, target.empty_cache(2, 9),
        CONFIG.target_layer_ids,
    )
    cache = drafter.empty_cache(2, 9)
    return full, drafter.apply(
        {'params': ours}, features, cache, method='inject'
    )

  full, injected = caches(theirs, ours, TOKENS)
  keys, values = tiny.cache_rows(injected, 0)
  exact, exact_values = tiny.cache_rows(full, 2)
  np.testing.assert_allclose(values, exact_values, atol=2e-4)
  if not qk_norm:
    level = ours['layers_0']['k_norm']['scale'][0]
    exact = exact / np.sqrt(np.mean(exact**2, -1, keepdims=True)) * level
  np.testing.assert_allclose(keys, exact, atol=2e-3)


@pytest.mark.parametrize('change, message', [
    ({'num_heads': 2}, 'num_heads 4, not 2'),
    ({'num_kv_heads': 1}, 'num_kv_heads 2, not 1'),
    ({'head_dim': 16}, 'head_dim 8, not 16'),
    ({'hidden_size': 16}, 'hidden_size 32, not 16'),
    ({'intermediate_size': 64}, 'intermediate_size 48, not 64'),
    ({'num_layers': 5, 'layer_types': CONFIG.layer_types[:1] * 5},
     'at most its 4 layers, not 5'),
])
def test_other_shapes_are_refused(change, message):
  config = dataclasses.replace(CONFIG, **change)
  module, params = tiny.target()
  with pytest.raises(errors.UserError, match=message):
    initialize.from_target(config, module, params, TOKENS, KEY)


def test_biases_are_refused():
  module = decoder.Decoder(dataclasses.replace(tiny.TARGET, qkv_bias=True))
  with pytest.raises(errors.UserError, match='biases on q, k and v'):
    initialize.from_target(CONFIG, module, {}, TOKENS, KEY)


def test_from_scratch_is_normal_with_unit_norms():
  config = dataclasses.replace(
      CONFIG, num_layers=1, layer_types=CONFIG.layer_types[:1]
  )
  start = jax.jit(functools.partial(initialize.from_scratch, config))
  params, other = start(jax.random.key(0)), start(jax.random.key(1))
  assert set(params) == {'fc', 'context_norm', 'final_norm', 'layers_0'}
  params, other = jax.device_get((params, other))
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if path[-1].key == 'scale':
      equal(leaf, np.ones(leaf.shape))
    else:
      assert abs(np.std(leaf) - 0.02) < 0.002 and abs(np.mean(leaf)) < 0.002
  equal(other['layers_0']['q_norm']['scale'], np.ones(8))
  assert (other['fc']['kernel'] != params['fc']['kernel']).all()
