"""Training sees what decoding sees, and moves what it should."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dflash_jax.decode import engine
from dflash_jax.decode import session as sessions
from dflash_jax.decode import state as states
from dflash_jax.drafter import model as drafter_model
from dflash_jax.target import decoder
from dflash_jax.train import blocks
from dflash_jax.train import trainer as training
from tests import tiny

BLOCK, GAMMA, ANCHORS = tiny.DRAFTER.block_size, 4.0, 6
LENGTHS, PROMPT_LENGTHS = np.array([22, 14], np.int32), np.array([5, 9], np.int32)


def make(loss=training.HARD, optimizer=optax.sgd(0.1), kind='full'):
  return training.Trainer(
      tiny.target()[0], tiny.drafter(tiny.DRAFTERS[kind])[0], optimizer,
      ANCHORS, GAMMA, loss,
  )


def batch(padding=2, pad_token=0):
  tokens = np.array(tiny.tokens((2, 22 + padding), seed=3))
  for row, length in zip(tokens, LENGTHS):
    row[length:] = pad_token
  return training.Batch(
      jnp.asarray(tokens), jnp.asarray(LENGTHS), jnp.asarray(PROMPT_LENGTHS)
  )


@functools.cache
def step(loss=training.HARD, kind='full'):
  return jax.jit(make(loss, kind=kind).step)


def run(loss=training.HARD, kind='full', data=None, seed=0):
  _, params = tiny.drafter(tiny.DRAFTERS[kind])
  return step(loss, kind)(
      tiny.target()[1], make(loss, kind=kind).init(params), data or batch(),
      jax.random.key(seed),
  )


@functools.partial(jax.jit, static_argnames='kind')
def decode_logits(kind, target_params, params, tokens, anchor):
  """Logits of one block as decoding computes them, from a cache."""
  target = decoder.Decoder(tiny.TARGET)
  drafter = drafter_model.Drafter(tiny.DRAFTERS[kind])
  apply = functools.partial(target.apply, {'params': target_params})
  # What is injected from the anchor on lies behind the cache's length.
  _, features, _ = apply(tokens[None], taps=drafter.config.target_layer_ids)
  cache = drafter.apply(
      {'params': params}, features, drafter.empty_cache(1, 40), method='inject'
  ).replace(length=anchor[None])
  block = drafter_model.block_tokens(
      tokens[anchor][None], BLOCK, drafter.config.mask_token_id
  )
  embedded = apply(block, method='embed')
  hidden, _ = drafter.apply({'params': params}, embedded, cache)
  return apply(hidden[:, 1:], method='head')[0]


def log_softmax(logits):
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize('kind, loss', [
    ('full', training.HARD), ('full', training.DISTILL),
    ('mixed', training.HARD),
])
def test_the_loss_is_a_loop_over_blocks_decoded_alone(kind, loss):
  data = batch()
  key = jax.random.key(0)
  anchors, real = blocks.sample_anchors(
      key, data.lengths, data.prompt_lengths, data.tokens.shape[1], ANCHORS
  )
  target, target_params = tiny.target()
  teacher = target.apply({'params': target_params}, data.tokens)[0]
  teacher = target.apply({'params': target_params}, teacher, method='head')
  teacher = np.asarray(teacher, np.float64)
  total, weight_sum, right, count = 0.0, 0.0, 0, 0
  for row, index in np.ndindex(2, ANCHORS):
    if not real[row, index]:
      continue
    anchor = int(anchors[row, index])
    logits = decode_logits(
        kind, target_params, tiny.drafter(tiny.DRAFTERS[kind])[1],
        data.tokens[row], anchors[row, index],
    )
    log_q = log_softmax(np.asarray(logits, np.float64))
    for slot in range(1, BLOCK):
      position = anchor + slot
      if position >= LENGTHS[row]:
        continue
      label = int(data.tokens[row, position])
      if loss == training.HARD:
        value = -log_q[slot - 1, label]
      else:
        p = np.exp(log_softmax(teacher[row, position - 1]))
        value = -(p * log_q[slot - 1]).sum()
      weight = np.exp(-(slot - 1) / GAMMA)
      total, weight_sum = total + weight * value, weight_sum + weight
      right += log_q[slot - 1].argmax() == label
      count += 1
  _, metrics = run(loss, kind)
  assert float(metrics['loss']) == pytest.approx(total / weight_sum, abs=1e-4)
  assert int(metrics['labels']) == count


def test_cached_features_are_those_of_the_step():
  data = batch()
  trainer = make(training.DISTILL)
  cached = trainer.with_features(tiny.target()[1], data)
  (_, fresh), (_, kept) = run(training.DISTILL), run(
      training.DISTILL, data=cached
  )
  np.testing.assert_allclose(fresh['loss'], kept['loss'], rtol=1e-5)


def test_padding_changes_nothing():
  _, plain = run()
  _, noisy = run(data=batch(pad_token=17))
  np.testing.assert_allclose(plain['loss'], noisy['loss'], rtol=1e-6)


def test_padded_rows_columns_and_blocks_change_nothing():
  """With more anchors than the responses have, every one of them is drawn."""
  loose = batch()
  loose = loose.replace(tokens=jnp.pad(loose.tokens, ((0, 0), (0, 7))))
  empty = training.Batch(
      jnp.full((1, loose.tokens.shape[1]), 17), jnp.array([6]), jnp.array([6])
  )
  padded = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), loose, empty)
  found = []
  for data, num_anchors in ((batch(), 20), (padded, 28)):
    trainer = dataclasses.replace(make(), num_anchors=num_anchors)
    state, metrics = jax.jit(trainer.step)(
        tiny.target()[1], trainer.init(tiny.drafter()[1]), data,
        jax.random.key(num_anchors),
    )
    found.append((state.params, metrics))
  (params, plain), (padded_params, metrics) = found
  # 16 anchors of row 0, 4 of row 1; the text ends inside the last blocks.
  assert plain['labels'] == metrics['labels'] == 20 * 4 - 2 * (1 + 2 + 3)
  for name in ('loss', 'accuracy', 'gradient_norm'):
    np.testing.assert_allclose(plain[name], metrics[name], rtol=1e-4)
  jax.tree.map(
      functools.partial(np.testing.assert_allclose, atol=1e-5),
      params, padded_params,
  )


def test_a_step_moves_all_of_the_drafter_and_nothing_else():
  target_params = tiny.target()[1]
  before = jax.tree.map(np.array, target_params)
  state, metrics = run()
  jax.tree.map(np.testing.assert_array_equal, before, target_params)
  moved = jax.tree_util.tree_map(
      lambda new, old: float(jnp.abs(new - old).max()),
      state.params, tiny.drafter()[1],
  )
  assert min(jax.tree.leaves(moved)) > 0
  assert float(metrics['gradient_norm']) > 0
  # Plain gradient descent: the step's length is that of the gradient.
  squares = jax.tree.map(
      lambda new, old: jnp.sum((new - old) ** 2),
      state.params, tiny.drafter()[1],
  )
  length = np.sqrt(sum(map(float, jax.tree.leaves(squares))))
  assert length == pytest.approx(0.1 * float(metrics['gradient_norm']), rel=1e-3)


@pytest.mark.parametrize('num_steps', [1, 2, 100])
def test_the_learning_rate_rises_and_falls(num_steps):
  optimizer = training.adamw(0.5, num_steps)
  params = {'w': jnp.zeros(())}
  state, moves = optimizer.init(params), []
  for _ in range(num_steps + 1):
    # A constant gradient: Adam moves by the learning rate.
    updates, state = optimizer.update({'w': jnp.ones(())}, state, params)
    moves.append(-float(updates['w']))
  warm = max(1, round(0.04 * num_steps))
  assert moves[0] == 0
  assert max(moves) == pytest.approx(0.5, rel=1e-3) == moves[warm]
  if num_steps > 1:
    assert moves[-1] == pytest.approx(0, abs=1e-6)


def test_steps_lower_the_loss_and_count():
  trainer = make(optimizer=training.adamw(3e-3, 30))
  jitted = jax.jit(trainer.step)
  state = trainer.init(tiny.drafter()[1])
  seen = []
  for _ in range(30):
    state, metrics = jitted(
        tiny.target()[1], state, batch(), jax.random.key(0)
    )
    seen.append(float(metrics['loss']))
  assert seen[-1] < 0.5 * seen[0]
  assert int(state.step) == 30
  assert jax.tree.structure(state.params) == jax.tree.structure(
      tiny.drafter()[1]
  )


def test_an_overfitted_text_decodes_in_whole_blocks():
  prompt = np.asarray(tiny.tokens((1, 6), seed=9))[0].tolist()
  answer = tiny.session().generate([prompt], 30)[0].tokens
  text = np.array([prompt + answer], np.int32)
  config = dataclasses.replace(tiny.DRAFTER, num_layers=2)
  drafter, params = tiny.drafter(config)
  trainer = training.Trainer(
      tiny.target()[0], drafter, training.adamw(6e-3, 200), 24, GAMMA,
      training.HARD,
  )
  data = training.Batch(
      jnp.asarray(text), jnp.array([text.shape[1]]), jnp.array([len(prompt)])
  )
  data = trainer.with_features(tiny.target()[1], data)
  jitted = jax.jit(trainer.step, donate_argnums=1)
  state = trainer.init(jax.tree.map(jnp.array, params))
  for index in range(200):
    state, metrics = jitted(
        tiny.target()[1], state, data, jax.random.key(index)
    )
  assert float(metrics['accuracy'].min()) == 1.0
  session = sessions.Session(
      engine.Engine(tiny.target()[0], drafter, BLOCK, ()),
      states.Params(tiny.target()[1], state.params),
  )
  completion = session.generate([prompt], 30)[0]
  assert completion.tokens == answer
  assert all(a == BLOCK - 1 for a in completion.accepted[:-1])
