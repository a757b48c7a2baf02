import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import naive
from tests import tiny

LENGTH = 12
TAPS = (0, 1, 2, 3)


@functools.cache
def forward(config):
  """`(params, tokens, cache, taps, span) -> logits, features, cache`."""
  module, _ = tiny.target(config)

  @functools.partial(jax.jit, static_argnames=('taps', 'span'))
  def run(params, tokens, cache=None, taps=TAPS, span=None):
    variables = {'params': params}
    hidden, features, cache = module.apply(
        variables, tokens, cache, taps, span=span
    )
    return module.apply(variables, hidden, method='head'), features, cache

  return run


def close(found, exact):
  np.testing.assert_allclose(found, exact, rtol=1e-4, atol=2e-4)


@pytest.fixture(scope='module')
def params():
  return tiny.target()[1]


@pytest.fixture(scope='module')
def tokens():
  return tiny.tokens((3, LENGTH))


@pytest.fixture(scope='module')
def uncached(params, tokens):
  """Logits `[B, T, V]` and all block outputs `[B, T, 4, D]`."""
  logits, features, cache = forward(tiny.TARGET)(params, tokens)
  assert cache is None
  return np.asarray(logits), np.asarray(features)


@pytest.mark.parametrize('variant', [
    {},
    {'tied_head': True, 'qkv_bias': True},
    {'qk_norm': True, 'head_dim': 12, 'num_kv_heads': 1},
])
def test_logits_and_taps_are_those_of_the_naive_model(variant, tokens):
  config = dataclasses.replace(tiny.TARGET, **variant)
  _, params = tiny.target(config)
  assert ('head' in params) == (not config.tied_head)
  logits, features, _ = forward(config)(params, tokens)
  assert logits.dtype == jnp.float32
  for row in range(len(tokens)):
    exact, blocks = naive.target(config, params, tokens[row])
    close(np.asarray(logits)[row], exact)
    # `features` of tap i is block i itself: no shift, no final norm.
    close(np.asarray(features)[row], blocks.swapaxes(0, 1))


def test_taps_come_in_the_order_asked(params, tokens, uncached):
  _, features, _ = forward(tiny.TARGET)(params, tokens, taps=(3, 1))
  np.testing.assert_allclose(features, uncached[1][:, :, [3, 1]], atol=1e-5)


@pytest.mark.parametrize('layer', TAPS)
def test_a_layer_moves_its_own_tap_and_later_ones(
    layer, params, tokens, uncached
):
  moved = jax.tree.map(lambda x: x, params)
  name = f'layers_{layer}'
  moved[name]['down']['kernel'] = params[name]['down']['kernel'] * 1.1
  _, features, _ = forward(tiny.TARGET)(moved, tokens)
  change = np.abs(np.asarray(features) - uncached[1]).max(axis=(0, 1, 3))
  assert ((change > 0) == (np.array(TAPS) >= layer)).all()


def test_the_future_does_not_matter(params, tokens, uncached):
  changed = tokens.copy()
  changed[:, 7:] += 1
  logits, features, _ = forward(tiny.TARGET)(params, changed)
  np.testing.assert_array_equal(logits[:, :7], uncached[0][:, :7])
  np.testing.assert_array_equal(features[:, :7], uncached[1][:, :7])
  assert np.abs(logits[:, 7:] - uncached[0][:, 7:]).max() > 0.1


def garbage_cache(batch, capacity):
  """An empty cache whose slots are not blank."""
  cache = tiny.target()[0].empty_cache(batch, capacity)
  return jax.tree.map(
      lambda x: jnp.full_like(x, 1e4) if x.ndim > 1 else x, cache
  )


@pytest.mark.parametrize('chunks', [(12,), (5, 1, 1, 5), (1,) * 12])
def test_cached_chunks_equal_one_uncached_pass(
    chunks, params, tokens, uncached
):
  cache = garbage_cache(3, 16)
  done = 0
  for chunk in chunks:
    logits, features, after = forward(tiny.TARGET)(
        params, tokens[:, done : done + chunk], cache
    )
    # The caller commits.
    np.testing.assert_array_equal(after.length, cache.length)
    cache = after.replace(length=after.length + chunk)
    close(logits, uncached[0][:, done : done + chunk])
    close(features, uncached[1][:, done : done + chunk])
    done += chunk


@pytest.mark.parametrize('starts', [(3, 5, 1), (0, 2, 5)])
def test_ragged_rows_go_on_from_their_own_length(
    starts, params, tokens, uncached
):
  """Right-padded first chunk, then five tokens a row from where it ended."""
  starts = np.array(starts)
  padded = np.where(np.arange(5)[None] < starts[:, None], tokens[:, :5], 7)
  _, _, cache = forward(tiny.TARGET)(
      params, jnp.asarray(padded), garbage_cache(3, 16)
  )
  cache = cache.replace(length=jnp.asarray(starts, jnp.int32))
  at = starts[:, None] + np.arange(5)
  rows = np.arange(3)[:, None]
  logits, features, cache = forward(tiny.TARGET)(
      params, tokens[rows, at], cache
  )
  close(logits, uncached[0][rows, at])
  close(features, uncached[1][rows, at])


def test_rejected_tokens_leave_no_trace(params, tokens, uncached):
  """Roll-back is a length: write a wrong chunk, then the right one."""
  run = forward(tiny.TARGET)
  cache = garbage_cache(3, 16)
  _, _, cache = run(params, tokens[:, :5], cache)
  cache = cache.replace(length=cache.length + 5)
  _, _, cache = run(params, tokens[:, :5] + 1, cache)
  logits, _, _ = run(params, tokens[:, 5:10], cache)
  close(logits, uncached[0][:, 5:10])


def test_span_changes_nothing(params, tokens, uncached):
  run = forward(tiny.TARGET)
  logits, features, cache = run(params, tokens, garbage_cache(3, 16), span=13)
  _, _, whole = run(params, tokens, garbage_cache(3, 16))
  close(logits, uncached[0])
  close(features, uncached[1])
  assert cache.capacity == 16
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), cache, whole
  )


def test_bfloat16_parameters_give_float32_logits(params, tokens, uncached):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  logits, features, _ = forward(tiny.TARGET)(half, tokens)
  assert logits.dtype == jnp.float32 and features.dtype == jnp.bfloat16
  error = np.abs(logits - uncached[0]).max() / np.abs(uncached[0]).max()
  assert error < 0.1
