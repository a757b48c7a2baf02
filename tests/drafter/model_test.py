import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.drafter import model
from tests import naive
from tests import tiny

BATCH, CONTEXT, BLOCK = 2, 14, tiny.DRAFTER.block_size
# Overlapping blocks, more than one at a place, and one behind all context.
ANCHORS = np.array([[3, 5, 6, 14], [1, 1, 9, 12]], np.int32)
KINDS = pytest.mark.parametrize('kind', tiny.DRAFTERS)


def random(*shape, seed):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


FEATURES = random(BATCH, CONTEXT, 2, 32, seed=3)
BLOCKS = random(BATCH, ANCHORS.shape[1], BLOCK, 32, seed=4)


@functools.cache
def blocks(kind):
  module, _ = tiny.drafter(tiny.DRAFTERS[kind])
  return jax.jit(functools.partial(module.apply, method='blocks'))


@functools.cache
def step(kind):
  """Inject features, commit `count` of them, run one block."""
  module, _ = tiny.drafter(tiny.DRAFTERS[kind])

  @jax.jit
  def run(variables, features, count, block, cache):
    cache = module.apply(variables, features, cache, method='inject')
    cache = cache.replace(length=cache.length + count)
    return module.apply(variables, block, cache)

  return run


def variables(kind):
  return {'params': tiny.drafter(tiny.DRAFTERS[kind])[1]}


def garbage_cache(kind):
  cache = tiny.drafter(tiny.DRAFTERS[kind])[0].empty_cache(BATCH, 24)
  return jax.tree.map(
      lambda x: jnp.full_like(x, 1e4) if x.ndim > 1 else x, cache
  )


@functools.cache
def exact(kind):
  """Hidden states of every block, `[B, A, L, D]`, by the naive model."""
  config = tiny.DRAFTERS[kind]
  _, params = tiny.drafter(config)
  out = np.empty(BLOCKS.shape)
  for b, a in np.ndindex(ANCHORS.shape):
    out[b, a] = naive.draft(
        config, params, BLOCKS[b, a], ANCHORS[b, a], FEATURES[b]
    )
  return out


def close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


@KINDS
def test_overlapping_blocks_are_each_the_naive_model(kind):
  close(blocks(kind)(variables(kind), BLOCKS, ANCHORS, FEATURES), exact(kind))


@KINDS
def test_cached_inference_is_the_naive_model(kind):
  """All features at once; rolling back to the anchor is setting the length."""
  for a in range(ANCHORS.shape[1]):
    hidden, cache = step(kind)(
        variables(kind), FEATURES, ANCHORS[:, a], BLOCKS[:, a],
        garbage_cache(kind),
    )
    close(hidden, exact(kind)[:, a])
    np.testing.assert_array_equal(cache.length, ANCHORS[:, a])


@KINDS
def test_features_injected_in_ragged_pieces(kind):
  """As in decoding: rows commit 0 to 5 of 5 rows, and blocks run between.

  The block before each injection is another one: its keys and values must
  leave no trace.
  """
  cache = garbage_cache(kind)
  # 14 and 12 in all: the anchors of the last blocks.
  for piece, counts in enumerate([(5, 3), (1, 0), (4, 5), (4, 4)]):
    last = piece == 3
    pieces = np.stack([
        np.pad(row[start:], ((0, BLOCK), (0, 0), (0, 0)))[:BLOCK]
        for row, start in zip(FEATURES, cache.length)
    ])
    block = BLOCKS[:, 3] if last else 100 * random(BATCH, BLOCK, 32, seed=piece)
    hidden, cache = step(kind)(
        variables(kind), pieces, np.array(counts, np.int32), block, cache
    )
  np.testing.assert_array_equal(cache.length, ANCHORS[:, 3])
  close(hidden, exact(kind)[:, 3])


@KINDS
def test_only_features_before_the_anchor_and_in_the_window_matter(kind):
  config = tiny.DRAFTERS[kind]
  windows = [config.window(layer) for layer in range(config.num_layers)]
  run = functools.partial(blocks(kind), variables(kind), BLOCKS, ANCHORS)
  before = np.asarray(run(FEATURES))
  for position in range(CONTEXT):
    features = FEATURES.copy()
    features[:, position] += 1
    moved = (before != np.asarray(run(features))).any(axis=(2, 3))
    in_window = np.logical_or.reduce([
        np.full(ANCHORS.shape, True) if window is None
        else ANCHORS - position < window
        for window in windows
    ])
    np.testing.assert_array_equal(moved, (position < ANCHORS) & in_window)


@KINDS
def test_a_block_moves_no_other_block(kind):
  run = lambda block: blocks(kind)(variables(kind), block, ANCHORS, FEATURES)
  before = np.asarray(run(BLOCKS))
  for a in range(ANCHORS.shape[1]):
    changed = BLOCKS.copy()
    changed[:, a, 2] += 1
    moved = (before != np.asarray(run(changed))).any(axis=3)
    others = np.arange(ANCHORS.shape[1]) != a
    assert not moved[:, others].any()
    # Slots before the changed one see it unless every layer is causal.
    causal = kind == 'causal'
    expected = np.arange(BLOCK) >= 2 if causal else np.full(BLOCK, True)
    np.testing.assert_array_equal(moved[:, a], [expected] * BATCH)


def test_tokens_after_an_anchor_move_nothing_in_its_block():
  """From tokens: the target's features, and `[anchor, mask, ...]` embedded."""
  target, target_params = tiny.target()
  drafter, _ = tiny.drafter()
  rows = np.arange(BATCH)[:, None]

  @jax.jit
  def run(tokens):
    of_target = {'params': target_params}
    _, features, _ = target.apply(
        of_target, tokens, taps=drafter.config.target_layer_ids
    )
    block = model.block_tokens(tokens[rows, ANCHORS], BLOCK, tiny.MASK)
    block = target.apply(of_target, block, method='embed')
    return drafter.apply(
        variables('full'), block, jnp.asarray(ANCHORS), features,
        method='blocks',
    )

  tokens = tiny.tokens((BATCH, CONTEXT + 1))
  before = np.asarray(run(tokens))
  for position in range(CONTEXT + 1):
    changed = tokens.copy()
    changed[:, position] = (changed[:, position] + 1) % tiny.MASK
    moved = (before != np.asarray(run(changed))).any(axis=(2, 3))
    # At the anchor itself the token is the block's own slot 0.
    np.testing.assert_array_equal(moved, position <= ANCHORS)


def test_block_tokens_start_with_the_anchor():
  out = model.block_tokens(jnp.array([[4, 9]]), 3, 63)
  assert out.tolist() == [[[4, 63, 63], [9, 63, 63]]]


@pytest.mark.parametrize('multiplier, cap', [(1.0, None), (0.25, 20.0)])
def test_logits_are_scaled_and_then_capped(multiplier, cap):
  config = dataclasses.replace(
      tiny.DRAFTER, output_multiplier=multiplier, final_logit_softcapping=cap
  )
  logits = random(3, 64, seed=5) * 100
  out = model.Drafter(config).apply(
      {}, jnp.zeros((3, 32)), lambda hidden: jnp.asarray(logits),
      method='logits',
  )
  exact = logits * multiplier
  if cap:
    exact = cap * np.tanh(exact / cap)
  np.testing.assert_allclose(out, exact, rtol=1e-5)
  assert (out.argmax(-1) == logits.argmax(-1)).all()


def test_a_head_of_its_own_speaks_of_its_tokens_only():
  config = dataclasses.replace(
      tiny.OWN_HEAD, output_multiplier=0.5, final_logit_softcapping=9.0
  )
  drafter, params = tiny.drafter(config)
  hidden = random(2, 3, 32, seed=6)
  out = np.asarray(drafter.apply(
      {'params': params}, jnp.asarray(hidden), lambda _: 1 / 0,
      method='logits',
  ))
  assert out.shape == (2, 3, 64)
  ids = np.asarray(params['head_ids'])
  expected = 9 * np.tanh(hidden @ params['head']['kernel'].T / 2 / 9)
  np.testing.assert_allclose(out[..., ids], expected, rtol=1e-5, atol=1e-6)
  assert (np.delete(out, ids, axis=-1) == model.ABSENT).all()


def test_parameters_are_those_of_a_published_drafter():
  """11 tensors a layer and 3 more, weights `[out, in]`."""
  _, params = tiny.drafter()
  assert len(jax.tree.leaves(params)) == 11 * 2 + 3
  assert params['fc']['kernel'].shape == (32, 2 * 32)
  layer = params['layers_1']
  assert layer['q']['kernel'].shape == (3 * 6, 32)
  assert layer['k']['kernel'].shape == layer['v']['kernel'].shape == (6, 32)
  assert layer['o']['kernel'].shape == (32, 18)
  for name in ('q_norm', 'k_norm'):
    assert layer[name]['scale'].shape == (6,)
