"""Starting points of a drafter: from scratch, or from the target's top."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dflash_jax import errors
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import model
from dflash_jax.nn import linear
from dflash_jax.nn import norms
from dflash_jax.target import decoder


def from_scratch(
    config: drafter_config.DrafterConfig, key: jax.Array
) -> dict[str, Any]:
  """Normal(0, 0.02) matrices and unit norms.

  What DFlash 2 adds starts as nothing: its convolutions as the identity, its
  selector with a successor codebook of zeros.
  """
  width = config.hidden_size

  def touch(drafter):
    """Runs every part once, as parameters are made on the way."""
    drafter.blocks(
        jnp.zeros((1, 1, config.block_size, width)),
        jnp.zeros((1, 1), jnp.int32),
        jnp.zeros((1, 1, len(config.target_layer_ids), width)),
    )
    if config.draft_vocab_size is not None:
      drafter.head(jnp.zeros((1, width)))
    if config.selector_rank is not None:
      slots = jnp.zeros((1, config.selector_top_k))
      ids = slots.astype(jnp.int32)
      drafter.pair_scores(
          jnp.zeros((1, width)), slots, ids, ids[0, 0],
          lambda tokens: jnp.zeros((*tokens.shape, width)),
      )

  return model.Drafter(config).init(key, method=touch)['params']


def from_target(
    config: drafter_config.DrafterConfig,
    target: decoder.Decoder,
    target_params: Mapping[str, Any],
    tokens: jax.Array,
    key: jax.Array,
) -> dict[str, Any]:
  """A drafter whose layers are the target's last ones.

  In a drafter, the same k and v projections read the block (behind the input
  norm) and the injected context (which has none). So each layer's input norm
  is folded into its q, k and v, `fc` starts as the identity on the last tap,
  and the context norm as a plain RMS norm: an injected key is then what the
  target's layer would have computed from the tapped residual stream. A target
  without q/k norm gets one whose weight is the root mean square of its own
  queries and keys, so that attention keeps its temperature.

  Args:
    config: of the drafter; its layers must have the target's shape.
    target: the target.
    target_params: its parameters.
    tokens: `[B, T]` real text, on which the norms are measured.
    key: for the selector of DFlash 2, which no target has.

  Raises:
    errors.UserError: the drafter's layers are not shaped like the target's.
  """
  ours = target.config
  for field in (
      'hidden_size', 'num_heads', 'num_kv_heads', 'head_dim',
      'intermediate_size',
  ):
    if getattr(config, field) != getattr(ours, field):
      raise errors.UserError(
          f'a drafter made from the target needs its {field}'
          f' {getattr(ours, field)}, not {getattr(config, field)}; change it or'
          ' start from scratch'
      )
  if config.num_layers > ours.num_layers:
    raise errors.UserError(
        f'a drafter made from the target has at most its {ours.num_layers}'
        f' layers, not {config.num_layers}; make it smaller or start from'
        ' scratch'
    )
  if ours.qkv_bias:
    raise errors.UserError(
        'the target has biases on q, k and v, which a drafter cannot take'
        ' over; start from scratch'
    )
  width, num_taps = config.hidden_size, len(config.target_layer_ids)
  params: dict[str, Any] = {
      'fc': {'kernel': jnp.concatenate(
          [jnp.zeros((width, (num_taps - 1) * width)), jnp.eye(width)], axis=1
      )},
      'context_norm': {'scale': jnp.ones((width,))},
      'final_norm': target_params['final_norm'],
  }
  sources = range(ours.num_layers - config.num_layers, ours.num_layers)
  inputs = _layer_inputs(target, target_params, tokens, tuple(sources))
  for index, source in enumerate(sources):
    layer = dict(target_params[f'layers_{source}'])
    scale = layer['attention_norm']['scale']
    layer['attention_norm'] = {'scale': jnp.ones_like(scale)}
    for name in ('q', 'k', 'v'):
      layer[name] = {'kernel': layer[name]['kernel'] * scale[None]}
    if not ours.qk_norm:
      normed = norms.rms_norm(inputs[index], jnp.ones_like(scale), ours.norm_eps)
      for name in ('q', 'k'):
        heads = linear.project(normed, layer[name]['kernel'])
        level = jnp.sqrt(jnp.mean(jnp.square(heads)))
        layer[f'{name}_norm'] = {'scale': jnp.full((config.head_dim,), level)}
    params[f'layers_{index}'] = layer
  for name, value in from_scratch(config, key).items():
    # Whole parts such as the selector, and convolutions inside the layers.
    if name not in params:
      params[name] = value
    elif name.startswith('layers_'):
      params[name] = {**value, **params[name]}
  # Copies: training donates its parameters, and the target's must survive.
  return jax.tree.map(lambda leaf: jnp.array(leaf, leaf.dtype), params)


def _layer_inputs(target, target_params, tokens, sources):
  """The residual stream that enters each of the `sources` layers."""
  taps = tuple(source - 1 for source in sources if source > 0)
  variables = {'params': target_params}
  _, features, _ = target.apply(variables, tokens, taps=taps)
  inputs = [features[:, :, index] for index in range(len(taps))]
  if len(taps) < len(sources):
    inputs.insert(0, target.apply(variables, tokens, method='embed'))
  return inputs
