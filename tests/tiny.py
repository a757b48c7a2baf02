"""Tiny models that compile fast, and whose parts all matter.

Parameters come from NumPy: compiling an initialiser takes longer than any test
here. Norm scales and biases are far from their initial values, so that a
forgotten one shows.
"""

import dataclasses
import functools

import einops
import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax.decode import engine
from dflash_jax.decode import session as sessions
from dflash_jax.decode import state
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model
from dflash_jax.target import config as target_config
from dflash_jax.target import decoder

TARGET = target_config.TargetConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    norm_eps=1e-5,
    rope_theta=1e4,
    max_length=48,
    tied_head=False,
)
MASK = 63
FULL, SLIDING = drafter_config.FULL, drafter_config.SLIDING
# Taps are out of order and hold the last block; the heads are not the target's.
DRAFTER = drafter_config.DrafterConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=3,
    num_kv_heads=1,
    head_dim=6,
    intermediate_size=40,
    norm_eps=1e-5,
    rope_theta=500.0,
    max_length=48,
    layer_types=(FULL, FULL),
    sliding_window=None,
    is_causal=None,
    block_size=5,
    mask_token_id=MASK,
    target_layer_ids=(3, 1),
    num_target_layers=4,
)
DRAFTERS = {
    'full': DRAFTER,
    'sliding': dataclasses.replace(
        DRAFTER,
        layer_types=(SLIDING, SLIDING),
        sliding_window=7,
        is_causal=False,
        input_embedding_scale=1.5,
    ),
    'causal': dataclasses.replace(DRAFTER, is_causal=True),
    'mixed': dataclasses.replace(
        DRAFTER, layer_types=(SLIDING, FULL), sliding_window=4
    ),
    'v2': dataclasses.replace(
        DRAFTER, is_causal=False, conv_kernel_size=2, conv_group_size=8,
        selector_rank=3, selector_top_k=6,
    ),
}

# As in speculators' files: a head of its own, over a part of the vocabulary.
OWN_HEAD = dataclasses.replace(DRAFTER, draft_vocab_size=20)


def fill(shapes, seed, scale=0.35):
  """Random parameters of these shapes: scales near 1, the rest near 0."""
  rng = np.random.default_rng(seed)

  def leaf(path, shape):
    value = rng.normal(size=shape.shape)
    if path[-1].key == 'head_ids':
      return jnp.arange(shape.size) * 3 + 1
    if path[-1].key == 'scale':
      value = 1 + 0.3 * value
    elif path[-1].key == 'embedding':
      value = value * 0.5
    else:
      value = value * scale
    return jnp.asarray(value, jnp.float32)

  return jax.tree_util.tree_map_with_path(leaf, shapes)


@functools.cache
def target(config=TARGET, seed=0):
  """A decoder and its parameters."""
  return decoder.Decoder(config), fill(decoder.parameter_shapes(config), seed)


@functools.cache
def drafter(config=DRAFTER, seed=1):
  """A drafter and its parameters."""
  shapes = jax.eval_shape(
      lambda key: initialize.from_scratch(config, key), jax.random.key(0)
  )
  return model.Drafter(config), fill(shapes, seed)


def tokens(shape, seed=0):
  """Random token ids that are not the mask."""
  rng = np.random.default_rng(seed)
  return rng.integers(0, MASK, shape).astype(np.int32)


def cache_rows(cache, layer):
  """Keys and values of a layer, both as `[B, S, M, H]`."""
  batch = len(cache.length)
  keys = einops.rearrange(
      np.asarray(cache.keys[layer]), '(B M) H S -> B S M H', B=batch
  )
  values = einops.rearrange(
      np.asarray(cache.values[layer]), '(B M) S H -> B S M H', B=batch
  )
  return keys, values


@functools.cache
def session(block_size=1, stop_ids=()):
  """A session of the tiny pair; block size 1 is autoregressive.

  One for all tests: what is compiled stays compiled.
  """
  module, params = target()
  if block_size == 1:
    autoregressive = engine.Engine(module, None, 1, stop_ids)
    return sessions.Session(autoregressive, state.Params(params))
  proposer, proposer_params = drafter(
      dataclasses.replace(DRAFTER, block_size=block_size)
  )
  return sessions.Session(
      engine.Engine(module, proposer, block_size, stop_ids),
      state.Params(params, proposer_params),
  )
