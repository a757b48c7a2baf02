import gc
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import orbax
from dflash_jax.train import trainer as training

# A restore that fails leaves Orbax's coroutines behind, never awaited.
pytestmark = [
    pytest.mark.filterwarnings('ignore:coroutine .* was never awaited'),
    pytest.mark.filterwarnings(
        'ignore::pytest.PytestUnraisableExceptionWarning'
    ),
]


@pytest.fixture(autouse=True)
def collected():
  """They are collected here, not during a later test."""
  yield
  gc.collect()



def state(value):
  leaf = jnp.full((3,), value)
  return training.TrainState(jnp.int32(value), {'w': leaf}, (leaf, {'n': leaf}))


def test_the_newest_two_are_kept_and_come_back(tmp_path):
  checkpoints = orbax.Checkpoints(tmp_path / 'c')
  assert checkpoints.latest_step() is None
  for number in (1, 2, 3):
    checkpoints.save(number, state(number))
  fresh = orbax.Checkpoints(tmp_path / 'c')
  assert fresh.latest_step() == 3
  restored = fresh.restore(3, state(0))
  assert isinstance(restored, training.TrainState)
  for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(state(3))):
    np.testing.assert_array_equal(ours, theirs)
  assert sorted(p.name for p in (tmp_path / 'c').iterdir()) == ['2', '3']


def test_a_state_of_another_shape_is_refused(tmp_path):
  checkpoints = orbax.Checkpoints(tmp_path)
  checkpoints.save(1, {'a': jnp.zeros(3)})
  with pytest.raises(errors.UserError, match='does not fit this run'):
    checkpoints.restore(1, {'b': jnp.zeros(3)})


def test_a_leaf_of_another_shape_is_refused(tmp_path):
  checkpoints = orbax.Checkpoints(tmp_path)
  checkpoints.save(1, state(1))
  other = state(0)
  other = other.replace(params={'w': jnp.zeros((4,))})
  with pytest.raises(errors.UserError, match='does not fit this run') as caught:
    checkpoints.restore(1, other)
  assert str(tmp_path / '1') in str(caught.value)


def test_a_damaged_checkpoint(tmp_path):
  checkpoints = orbax.Checkpoints(tmp_path)
  checkpoints.save(1, state(1))
  for path in (tmp_path / '1').rglob('*'):
    if path.is_file():
      path.write_bytes(b'')
  with pytest.raises(errors.UserError, match='is damaged'):
    orbax.Checkpoints(tmp_path).restore(1, state(0))


def test_what_a_kill_left_of_a_save_is_no_checkpoint(tmp_path):
  checkpoints = orbax.Checkpoints(tmp_path)
  checkpoints.save(1, state(1))
  shutil.copytree(tmp_path / '1', tmp_path / '2.orbax-checkpoint-tmp')
  fresh = orbax.Checkpoints(tmp_path)
  assert fresh.latest_step() == 1
  fresh.save(2, state(2))
  assert orbax.Checkpoints(tmp_path).latest_step() == 2


def test_an_unwritable_folder(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot write'):
    orbax.Checkpoints(tmp_path / 'file' / 'c')
