"""A run that stops anywhere ends as if it had not."""

import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import orbax
from dflash_jax.train import loop
from dflash_jax.train import trainer as training

OPTIMIZER = optax.adam(0.1)


@jax.jit
def step(state, batch, key):
  """A noisy fit of a line: batch and key both matter."""
  def loss_of(params):
    noise = 0.1 * jax.random.normal(key, (4,))
    return jnp.mean((params['w'] * batch - 3.0 * batch + noise) ** 2)

  loss, grads = jax.value_and_grad(loss_of)(state.params)
  updates, optimizer = OPTIMIZER.update(grads, state.optimizer, state.params)
  params = optax.apply_updates(state.params, updates)
  return training.TrainState(state.step + 1, params, optimizer), {'loss': loss}


def make_batch(index):
  return jnp.asarray(np.random.default_rng(index).normal(size=4), jnp.float32)


def train(folder, num_steps, slow=0.0, **options):
  params = {'w': jnp.zeros(())}
  state = training.TrainState(
      jnp.zeros((), jnp.int32), params, OPTIMIZER.init(params)
  )

  def slow_batch(index):
    time.sleep(slow)
    return make_batch(index)

  return loop.run(
      step, state, options.pop('make_batch', slow_batch), num_steps=num_steps,
      seed=1, checkpoints=orbax.Checkpoints(folder / 'checkpoints'),
      save_every=4, log=loop.MetricsLog(folder / 'metrics.jsonl'),
      log_every=1, evaluate=options.pop('evaluate', None), eval_every=3,
      label='test',
  )


def losses(folder):
  rows = loop.MetricsLog(folder / 'metrics.jsonl').rows()
  return [(row['step'], row['loss']) for row in rows if 'loss' in row]


def check_same(ours, theirs):
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_resume_is_exact(tmp_path):
  whole = train(tmp_path / 'a', 12)
  train(tmp_path / 'b', 6)
  halves = train(tmp_path / 'b', 12)
  assert losses(tmp_path / 'a') == losses(tmp_path / 'b')
  assert len(losses(tmp_path / 'a')) == 12
  check_same(whole, halves)


def test_killed_and_resumed_is_the_same_run(tmp_path):
  whole = train(tmp_path / 'a', 16)
  child = subprocess.Popen(
      [sys.executable, '-m', 'tests.train.loop_test', str(tmp_path / 'b')],
      cwd=pathlib.Path(__file__).parents[2], stderr=subprocess.DEVNULL,
  )
  log = loop.MetricsLog(tmp_path / 'b' / 'metrics.jsonl')
  while len(log.rows()) < 10:
    assert child.poll() is None
    time.sleep(0.02)
  child.send_signal(signal.SIGKILL)
  assert child.wait() == -signal.SIGKILL
  resumed = train(tmp_path / 'b', 16)
  assert losses(tmp_path / 'b') == losses(tmp_path / 'a')
  assert [step for step, _ in losses(tmp_path / 'b')] == list(range(1, 17))
  check_same(whole, resumed)


def test_a_finished_run_is_not_trained_again(tmp_path):
  first = train(tmp_path, 6)
  before = losses(tmp_path)
  check_same(first, train(tmp_path, 6))
  assert losses(tmp_path) == before


def test_a_run_killed_between_checkpoints_writes_no_row_twice(tmp_path):
  """Rows 5 and 6 were written, the checkpoint behind them was not."""

  class Killed(Exception):
    pass

  def die(index):
    if index == 6:
      raise Killed
    return make_batch(index)

  whole = train(tmp_path / 'a', 9)
  with pytest.raises(Killed):
    train(tmp_path / 'b', 9, make_batch=die)
  assert [step for step, _ in losses(tmp_path / 'b')] == [1, 2, 3, 4, 5, 6]
  assert orbax.Checkpoints(tmp_path / 'b' / 'checkpoints').latest_step() == 4
  resumed = train(tmp_path / 'b', 9)
  assert losses(tmp_path / 'b') == losses(tmp_path / 'a')
  check_same(whole, resumed)


def test_evaluation_rows(tmp_path):
  train(tmp_path, 7, evaluate=lambda state: {'tau': float(state.params['w'])})
  rows = loop.MetricsLog(tmp_path / 'metrics.jsonl').rows()
  assert [row['step'] for row in rows if 'eval/tau' in row] == [3, 6, 7]
  assert len({row['eval/tau'] for row in rows if 'eval/tau' in row}) == 3


def test_an_evaluation_without_a_value_is_logged_as_such(tmp_path):
  train(tmp_path, 3, evaluate=lambda state: {'tau': None})
  rows = loop.MetricsLog(tmp_path / 'metrics.jsonl').rows()
  assert [row['eval/tau'] for row in rows if 'eval/tau' in row] == [None]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
  bad = lambda index: make_batch(index) * (np.nan if index == 4 else 1.0)
  with pytest.raises(errors.UserError, match=r'loss is nan at step 5.*npz'):
    train(tmp_path, 9, make_batch=bad)
  assert [step for step, _ in losses(tmp_path)] == [1, 2, 3, 4]
  with np.load(tmp_path / 'bad_batch_5.npz') as saved:
    assert np.isnan(saved[saved.files[0]]).all()
  assert orbax.Checkpoints(tmp_path / 'checkpoints').latest_step() == 4
  # The checkpoint before it is whole, and the run can be mended from there.
  train(tmp_path, 9)
  assert [step for step, _ in losses(tmp_path)] == list(range(1, 10))


def test_a_torn_row_is_left_out(tmp_path):
  log = loop.MetricsLog(tmp_path / 'm.jsonl')
  log.write(1, {'loss': np.float32(2), 'accuracy': jnp.ones(2)})
  log.write(2, {'loss': 1.0})
  with log.path.open('a') as file:
    file.write(json.dumps({'step': 3})[:-2])
  assert [row['step'] for row in log.rows()] == [1, 2]
  assert log.rows()[0]['accuracy'] == [1.0, 1.0]
  log.rewind(1)
  assert [row['step'] for row in log.rows()] == [1]
  log.write(2, {'loss': 3.0})  # On a line of its own.
  assert [row['step'] for row in log.rows()] == [1, 2]


def test_the_batch_of_a_failed_step_is_saved_with_its_names(tmp_path):
  data = training.Batch(
      jnp.ones((1, 2), jnp.int32), jnp.array([2]), jnp.array([1])
  )
  with pytest.raises(errors.UserError, match='loss is inf at step 1') as caught:
    loop.run(
        lambda state, batch, key: (state, {'loss': jnp.inf}),
        training.TrainState(jnp.int32(0), {}, ()), lambda index: data,
        num_steps=1, seed=0, checkpoints=orbax.Checkpoints(tmp_path / 'c'),
        save_every=1, log=loop.MetricsLog(tmp_path / 'm.jsonl'), log_every=1,
        evaluate=None, eval_every=1, label='test',
    )
  path = tmp_path / 'bad_batch_1.npz'
  assert str(path) in str(caught.value)
  with np.load(path) as saved:
    assert set(saved.files) == {'.tokens', '.lengths', '.prompt_lengths'}
    np.testing.assert_array_equal(saved['.tokens'], data.tokens)


def test_an_unwritable_log(tmp_path):
  (tmp_path / 'file').write_text('')
  log = loop.MetricsLog(tmp_path / 'file' / 'm.jsonl')
  with pytest.raises(errors.UserError, match='cannot write .*m.jsonl'):
    log.write(1, {'loss': 1.0})


if __name__ == '__main__':
  # Compiled as in the parent: the last bits of a loss depend on it.
  importlib.import_module('tests.conftest')
  os.makedirs(sys.argv[1], exist_ok=True)
  train(pathlib.Path(sys.argv[1]), 16, slow=0.1)
