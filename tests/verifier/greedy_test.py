import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.verifier import greedy

verify = jax.jit(greedy.verify)


def naive_verify(drafts, logits):
  """Accepted drafts and emitted tokens of one row."""
  emitted = []
  for slot, row in enumerate(logits):
    best = max(range(len(row)), key=lambda token: (row[token], -token))
    emitted.append(best)
    if slot == len(drafts) or drafts[slot] != best:
      return slot, emitted


@pytest.mark.parametrize('block_size', [1, 2, 5])
def test_verify_is_a_loop(block_size):
  rng = np.random.default_rng(0)
  # Few values and few tokens: ties and agreements are frequent.
  logits = rng.integers(0, 4, (2000, block_size, 3)).astype(np.float32)
  drafts = rng.integers(0, 3, (2000, block_size - 1)).astype(np.int32)
  accepted, emitted = verify(drafts, logits)
  assert accepted.dtype == emitted.dtype == jnp.int32
  for row in range(2000):
    count, tokens = naive_verify(drafts[row], logits[row])
    assert accepted[row] == count
    assert emitted[row, : count + 1].tolist() == tokens
  assert set(accepted.tolist()) == set(range(block_size))


def test_a_right_draft_after_a_wrong_one_is_not_accepted():
  logits = np.eye(4, dtype=np.float32)[None, [1, 2, 3, 0]]
  accepted, emitted = verify(np.array([[1, 0, 3]], np.int32), logits)
  assert accepted.tolist() == [1] and emitted[0, :2].tolist() == [1, 2]


def test_ties_go_to_the_lowest_token():
  accepted, emitted = verify(
      np.array([[0, 1]], np.int32), np.zeros((1, 3, 5), np.float32)
  )
  assert accepted.tolist() == [1] and emitted[0, 0] == 0
