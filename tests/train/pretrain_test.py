"""Next-token training of a tiny target."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dflash_jax.target import decoder
from dflash_jax.train import pretrain
from dflash_jax.train import trainer as training
from tests import tiny

SMALL = dataclasses.replace(tiny.TARGET, num_layers=1)


def test_the_loss_is_next_token_cross_entropy():
  module, params = tiny.target(SMALL)
  tokens = jnp.asarray(tiny.tokens((2, 12)))
  hidden, _, _ = module.apply({'params': params}, tokens)
  logits = np.asarray(
      module.apply({'params': params}, hidden, method='head'), np.float64
  )
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  exact = -np.mean([
      log_p[row, at, tokens[row, at + 1]] for row, at in np.ndindex(2, 11)
  ])
  pretrainer = pretrain.Pretrainer(module, optax.sgd(0.1))
  state = training.TrainState(jnp.int32(0), params, optax.sgd(0.1).init(params))
  new, metrics = jax.jit(pretrainer.step)(state, tokens, jax.random.key(0))
  assert abs(float(metrics['loss']) - exact) < 1e-4
  assert int(new.step) == 1


def test_steps_lower_the_loss():
  config = dataclasses.replace(SMALL, tied_head=True)
  pretrainer = pretrain.Pretrainer(
      decoder.Decoder(config), training.adamw(1e-2, 30)
  )
  state = jax.jit(pretrainer.init)(jax.random.key(0))
  step = jax.jit(pretrainer.step, donate_argnums=0)
  text = np.tile(np.arange(20, dtype=np.int32), 10)
  losses = []
  for index in range(30):
    crop = jnp.asarray(pretrain.crops(text, index, 4, 17, 0))
    state, metrics = step(state, crop, jax.random.key(index))
    losses.append(float(metrics['loss']))
  assert losses[-1] < 0.5 * losses[0]


def test_crops_depend_on_seed_and_step_alone():
  text = np.arange(1000, dtype=np.int32)
  crops = pretrain.crops(text, 3, 64, 10, 0)
  assert crops.shape == (64, 10)
  np.testing.assert_array_equal(crops, crops[:, :1] + np.arange(10)[None])
  np.testing.assert_array_equal(crops, pretrain.crops(text, 3, 64, 10, 0))
  assert (crops != pretrain.crops(text, 4, 64, 10, 0)).any()
  assert (crops != pretrain.crops(text, 3, 64, 10, 1)).any()
