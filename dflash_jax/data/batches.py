"""A corpus as padded arrays, and which of its rows each training step sees."""

import dataclasses
from collections.abc import Sequence

from jaxtyping import Int32
from jaxtyping import Int64
import numpy as np

from dflash_jax import errors
from dflash_jax.data import corpus


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
  """Examples as rows: prompt, then response, then padding.

  Attributes:
    tokens: token ids, padded on the right.
    lengths: prompt and response together, in tokens, per row.
    prompt_lengths: the prompt alone; always shorter than `lengths`.
    num_long_prompts: examples dropped since no response token would fit.
    num_empty_responses: examples dropped since nothing could be learnt.
    num_cut_responses: rows whose response was cut to fit.
  """

  tokens: Int32[np.ndarray, 'num S']
  lengths: Int32[np.ndarray, 'num']
  prompt_lengths: Int32[np.ndarray, 'num']
  num_long_prompts: int
  num_empty_responses: int
  num_cut_responses: int

  @property
  def num_response_tokens(self) -> int:
    """Tokens that can be supervised, over all rows."""
    return int((self.lengths - self.prompt_lengths).sum())


def pack(
    examples: Sequence[corpus.Example], max_length: int, pad_id: int
) -> Dataset:
  """Lays `examples` out as rows of `max_length` tokens, in their order.

  Responses are cut to fit. Examples of which no response token fits, or that
  have none, are dropped and counted, never silently.

  Args:
    examples: at most one row each.
    max_length: S, tokens in a row.
    pad_id: the token that fills the rest of a row.

  Raises:
    errors.UserError: no response token is left to train on.
  """
  long = sum(len(e.prompt) >= max_length for e in examples)
  kept = [e for e in examples if len(e.prompt) < max_length and len(e.response)]
  if not kept:
    raise errors.UserError(
        f'no response token is left of {len(examples)} examples: {long} prompts'
        f' fill max_length {max_length}, {len(examples) - long} responses are'
        ' empty; raise max_length or regenerate the corpus'
    )
  tokens = np.full((len(kept), max_length), pad_id, np.int32)
  for row, example in zip(tokens, kept, strict=True):
    full = np.concatenate([example.prompt, example.response])[:max_length]
    row[: len(full)] = full
  prompt_lengths = np.array([len(e.prompt) for e in kept], np.int32)
  full_lengths = prompt_lengths + np.array(
      [len(e.response) for e in kept], np.int32
  )
  return Dataset(
      tokens=tokens,
      lengths=np.minimum(full_lengths, max_length, dtype=np.int32),
      prompt_lengths=prompt_lengths,
      num_long_prompts=long,
      num_empty_responses=len(examples) - long - len(kept),
      num_cut_responses=int((full_lengths > max_length).sum()),
  )


def batch_indices(
    step: int, num_examples: int, batch_size: int, seed: int
) -> Int64[np.ndarray, 'B']:
  """The rows of step `step`, a function of its arguments alone.

  Each epoch is a new permutation in which every row comes once; epochs follow
  each other without a gap, so that a batch may hold the end of one and the
  start of the next, and training resumes from the number of the step.

  Args:
    step: from 0.
    num_examples: rows to choose from, at least 1.
    batch_size: B; may exceed `num_examples`.
    seed: non-negative.
  """
  start = step * batch_size
  epochs = range(
      start // num_examples, (start + batch_size - 1) // num_examples + 1
  )
  rows = np.concatenate([
      np.random.default_rng([seed, epoch]).permutation(num_examples)
      for epoch in epochs
  ])
  first = start - epochs[0] * num_examples
  return rows[first : first + batch_size]
