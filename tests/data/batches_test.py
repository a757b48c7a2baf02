import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.data import batches
from dflash_jax.data import corpus


def _example(prompt, response):
  return corpus.Example(
      id='x',
      prompt=np.array(prompt, np.int32),
      response=np.array(response, np.int32),
      finished=True,
  )


def test_rows_are_prompt_response_padding():
  data = batches.pack(
      [
          _example([1, 2], [3]),
          _example([1, 2, 3, 4], [5]),  # no room for a response
          _example([1], [2, 3, 4, 5]),  # cut by one
          _example([7], []),  # nothing to learn
          _example([1, 2, 3], [4]),  # just fits
      ],
      max_length=4,
      pad_id=9,
  )
  np.testing.assert_array_equal(
      data.tokens, [[1, 2, 3, 9], [1, 2, 3, 4], [1, 2, 3, 4]]
  )
  np.testing.assert_array_equal(data.lengths, [3, 4, 4])
  np.testing.assert_array_equal(data.prompt_lengths, [2, 1, 3])
  for array in (data.tokens, data.lengths, data.prompt_lengths):
    assert array.dtype == np.int32
  assert data.num_long_prompts == 1
  assert data.num_empty_responses == 1
  assert data.num_cut_responses == 1
  assert data.num_response_tokens == 1 + 3 + 1


@pytest.mark.parametrize(
    'examples, message',
    [
        ([], 'of 0 examples'),
        ([_example([1, 2, 3, 4], [5])], '1 prompts fill max_length 4'),
        ([_example([1], [])], '1 responses are empty'),
    ],
)
def test_nothing_to_supervise_is_an_error(examples, message):
  with pytest.raises(errors.UserError, match=message):
    batches.pack(examples, max_length=4, pad_id=0)


@pytest.mark.parametrize('batch_size', [1, 3, 7, 10, 25])
def test_every_epoch_sees_each_row_once(batch_size):
  rows = np.concatenate([
      batches.batch_indices(step, 10, batch_size, seed=5) for step in range(40)
  ])
  assert len(rows) == 40 * batch_size
  epochs = rows[: len(rows) // 10 * 10].reshape(-1, 10)
  np.testing.assert_array_equal(
      np.sort(epochs), np.broadcast_to(np.arange(10), epochs.shape)
  )
  assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_the_order_depends_on_seed_and_step_alone():
  last_first = [batches.batch_indices(s, 50, 8, seed=1) for s in (9, 3, 9)]
  np.testing.assert_array_equal(last_first[0], last_first[2])
  other = batches.batch_indices(9, 50, 8, seed=2)
  assert (last_first[0] != other).any()
  # The order in which rows come does not depend on the size of the batch.
  np.testing.assert_array_equal(
      batches.batch_indices(1, 50, 8, seed=1),
      np.concatenate(
          [batches.batch_indices(s, 50, 4, seed=1) for s in (2, 3)]
      ),
  )
