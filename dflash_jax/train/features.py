"""Target features of a small corpus, kept in memory.

The target is frozen, so what it has to say about a text never changes; on a
machine where its forward pass dwarfs the drafter's step, once is enough.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from dflash_jax.train import trainer as training

# Rows whose features are computed in one call.
_ROWS = 8


class Dataset(Protocol):
  """Padded rows; see `data.batches.Dataset`."""

  tokens: np.ndarray
  lengths: np.ndarray
  prompt_lengths: np.ndarray


class FeatureCache(NamedTuple):
  """Features `[num, S, P, D]`, and hidden states `[num, S, D]` or None."""

  features: np.ndarray
  hidden: np.ndarray | None


def compute(
    trainer: training.Trainer, target_params: Any, dataset: Dataset
) -> FeatureCache:
  """Runs the target over every row once."""
  with_features = jax.jit(trainer.with_features)
  parts = []
  for start in tqdm.tqdm(
      range(0, len(dataset.tokens), _ROWS), desc='features', unit='batch'
  ):
    # Clipped, so that the last call has the shape of the others.
    rows = np.minimum(np.arange(start, start + _ROWS), len(dataset.tokens) - 1)
    done = with_features(target_params, batch(dataset, rows, None))
    parts.append(jax.device_get((done.features, done.hidden)))
  num = len(dataset.tokens)
  features, hidden = zip(*parts)
  return FeatureCache(
      np.concatenate(features)[:num],
      None if hidden[0] is None else np.concatenate(hidden)[:num],
  )


def batch(
    dataset: Dataset, rows: np.ndarray, cache: FeatureCache | None
) -> training.Batch:
  """The given rows as a training batch, with features if there is a cache."""
  hidden = None if cache is None or cache.hidden is None else cache.hidden
  return training.Batch(
      tokens=jnp.asarray(dataset.tokens[rows]),
      lengths=jnp.asarray(dataset.lengths[rows]),
      prompt_lengths=jnp.asarray(dataset.prompt_lengths[rows]),
      features=None if cache is None else jnp.asarray(cache.features[rows]),
      hidden=None if hidden is None else jnp.asarray(hidden[rows]),
  )
