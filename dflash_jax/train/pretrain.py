"""Next-token training of a tiny target, so that a run needs no download."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dflash_jax.target import decoder
from dflash_jax.train import trainer


@dataclasses.dataclass(frozen=True)
class Pretrainer:
  """The static side of training a target from scratch.

  Attributes:
    target: the model to train.
    optimizer: optax transformation.
  """

  target: decoder.Decoder
  optimizer: optax.GradientTransformation

  def init(self, key: jax.Array) -> trainer.TrainState:
    """State before the first step, parameters drawn from `key`."""
    tokens = jnp.zeros((1, 2), jnp.int32)
    params = self.target.init(key, tokens)['params']
    return trainer.TrainState(
        jnp.zeros((), jnp.int32), params, self.optimizer.init(params)
    )

  def step(
      self, state: trainer.TrainState, tokens: jax.Array, key: jax.Array
  ) -> tuple[trainer.TrainState, dict[str, jax.Array]]:
    """One update on `[B, S + 1]` tokens: each predicts the one behind it."""
    del key  # No dropout: nothing is random.

    def loss_of(params: Any) -> jax.Array:
      variables = {'params': params}
      hidden, _, _ = self.target.apply(variables, tokens[:, :-1])
      logits = self.target.apply(variables, hidden, method='head')
      return jnp.mean(
          optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
      )

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    updates, optimizer = self.optimizer.update(
        grads, state.optimizer, state.params
    )
    params = optax.apply_updates(state.params, updates)
    return trainer.TrainState(state.step + 1, params, optimizer), {'loss': loss}


def crops(
    text: np.ndarray, step: int, batch_size: int, length: int, seed: int
) -> np.ndarray:
  """`[batch_size, length]` random stretches of `text`, fixed by (seed, step)."""
  rng = np.random.default_rng((seed, step))
  starts = rng.integers(0, len(text) - length, batch_size)
  return np.stack([text[start : start + length] for start in starts])
