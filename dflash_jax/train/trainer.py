"""One training step of a drafter, as a pure function of a state."""

import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import optax

from dflash_jax.drafter import model as drafter_model
from dflash_jax.target import decoder
from dflash_jax.train import blocks
from dflash_jax.train import losses

HARD, DISTILL = 'hard', 'distill'


@struct.dataclass
class TrainState:
  """Everything that a step changes.

  Attributes:
    step: steps done, int32.
    params: trained parameters.
    optimizer: state of the optimiser.
  """

  step: jax.Array
  params: Any
  optimizer: Any


@struct.dataclass
class Batch:
  """Sequences of prompt and response, right-padded.

  Attributes:
    tokens: int32 `[B, S]`.
    lengths: tokens of each row, int32 `[B]`.
    prompt_lengths: prompt tokens of each row, int32 `[B]`.
    features: tapped target features `[B, S, P, D]`; None to compute them and
      `hidden` in the step.
    hidden: the target's final-normed hidden states `[B, S, D]`, wanted for
      distillation only.
  """

  tokens: jax.Array
  lengths: jax.Array
  prompt_lengths: jax.Array
  features: jax.Array | None = None
  hidden: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Trainer:
  """The static side of training.

  Attributes:
    target: frozen; lends its embedding and head, and its features.
    drafter: the model to train.
    optimizer: optax transformation.
    num_anchors: blocks drawn from each sequence in a step.
    loss_decay_gamma: decay of the slot weights.
    loss: HARD or DISTILL.
  """

  target: decoder.Decoder
  drafter: drafter_model.Drafter
  optimizer: optax.GradientTransformation
  num_anchors: int
  loss_decay_gamma: float
  loss: str

  def init(self, params: Any) -> TrainState:
    """State before the first step."""
    return TrainState(
        jnp.zeros((), jnp.int32), params, self.optimizer.init(params)
    )

  def step(
      self, target_params: Any, state: TrainState, batch: Batch, key: jax.Array
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update.

    Args:
      target_params: of the frozen target.
      state: before the step.
      batch: sequences; with no features, the target runs here.
      key: draws the anchors.

    Returns:
      State after the step, and metrics: `loss`; `accuracy`, the share of
      labels that are the argmax, by slot and without any conditioning;
      `labels`, how many there were.
    """
    if batch.features is None:
      batch = self.with_features(target_params, batch)
    gradient = jax.value_and_grad(self._loss, has_aux=True)
    (_, metrics), grads = gradient(state.params, target_params, batch, key)
    updates, optimizer = self.optimizer.update(
        grads, state.optimizer, state.params
    )
    params = optax.apply_updates(state.params, updates)
    metrics['gradient_norm'] = optax.tree.norm(grads)
    return TrainState(state.step + 1, params, optimizer), metrics

  def with_features(self, target_params: Any, batch: Batch) -> Batch:
    """The batch with what the target has to say about it."""
    hidden, features, _ = self.target.apply(
        {'params': target_params},
        batch.tokens,
        taps=self.drafter.config.target_layer_ids,
    )
    return batch.replace(
        features=features, hidden=hidden if self.loss == DISTILL else None
    )

  def _loss(self, params, target_params, batch, key):
    config = self.drafter.config
    draft_params = {'params': params}
    anchors, real = blocks.sample_anchors(
        key, batch.lengths, batch.prompt_lengths, batch.tokens.shape[1],
        self.num_anchors,
    )
    labels, exists = blocks.labels(
        batch.tokens, batch.lengths, anchors, config.block_size
    )
    tokens = drafter_model.block_tokens(
        blocks.take(batch.tokens, anchors), config.block_size,
        config.mask_token_id,
    )
    target = self.target.bind({'params': target_params})
    hidden = self.drafter.apply(
        draft_params, target.embed(tokens), anchors, batch.features,
        method='blocks',
    )[:, :, 1:]
    logits = self.drafter.apply(
        draft_params, hidden, target.head, method='logits'
    )
    counted = exists & real[:, :, None]
    decay = blocks.decay_weights(config.block_size, self.loss_decay_gamma)
    weights = counted * decay[None, None]
    if self.loss == HARD:
      values = losses.hard(logits, labels)
    else:
      # The target's distribution for position p is read off at p - 1.
      before = anchors[:, :, None] + jnp.arange(config.block_size - 1)[None, None]
      before = jnp.minimum(before, batch.tokens.shape[1] - 1)
      teacher = target.head(blocks.take(batch.hidden, before))
      values = losses.distill(logits, teacher)
    loss = losses.weighted_mean(values, weights)
    right = (jnp.argmax(logits, axis=-1) == labels) & counted
    slots = jnp.sum(counted, axis=(0, 1))
    return loss, {
        'loss': loss,
        'accuracy': jnp.sum(right, axis=(0, 1)) / jnp.maximum(slots, 1),
        'labels': jnp.sum(slots),
    }


def adamw(
    learning_rate: float,
    num_steps: int,
    warmup_fraction: float = 0.04,
    clip_norm: float = 1.0,
) -> optax.GradientTransformation:
  """AdamW without weight decay, clipped, warm-up then cosine to zero.

  The recipe of the paper's appendix; `warmup_fraction` of `num_steps` rises
  linearly.
  """
  warmup_steps = max(1, round(warmup_fraction * num_steps))
  schedule = optax.warmup_cosine_decay_schedule(
      init_value=0.0,
      peak_value=learning_rate,
      warmup_steps=warmup_steps,
      decay_steps=max(num_steps, warmup_steps + 1),
  )
  return optax.chain(
      optax.clip_by_global_norm(clip_norm),
      optax.adamw(schedule, weight_decay=0.0),
  )
