"""Configurations of other writers, as the published `config.json`."""

from collections.abc import Mapping
from typing import Any

from dflash_jax import errors
from dflash_jax.drafter import config as drafter_config

# What a class of transformers leaves out of its files: its default values.
_QWEN3_DEFAULTS = {
    'vocab_size': 151936,
    'hidden_size': 4096,
    'intermediate_size': 22016,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 32,
    'head_dim': 128,
    'max_position_embeddings': 32768,
    'rms_norm_eps': 1e-6,
}
_QWEN3_ROPE_THETA = 10_000.0
_MUSE_DEFAULTS = {
    # The family's; its assistant's class has none.
    'vocab_size': 202048,
    'hidden_size': 6656,
    'intermediate_size': 19968,
    'num_hidden_layers': 5,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'head_dim': 128,
    'max_position_embeddings': 131072,
    'rms_norm_eps': 1e-5,
    'sliding_window': 2048,
    'block_size': 16,
    'mask_token_id': 201818,
    'target_layer_ids': [1, 13, 25, 37, 49],
}
_MUSE_ROPE_THETA = 500_000.0
# Keys of a speculators file that say what `config.json` says in the same words.
_SPECULATORS_KEYS = (
    'mask_token_id', 'conv_kernel_size', 'conv_group_size', 'selector_rank',
    'selector_top_k',
)


def published(raw: Mapping[str, Any], source: str) -> Mapping[str, Any]:
  """The configuration in the published form, whoever wrote it.

  Besides that form itself: speculators, and the Muse assistant.

  Args:
    raw: a parsed `config.json`.
    source: its path, for messages.

  Raises:
    errors.UserError: a speculators file of another method.
  """
  if 'speculators_model_type' in raw:
    return _from_speculators(raw, source)
  if raw.get('model_type') == 'muse_glimmer_assistant':
    return _from_muse(raw)
  return raw


def _from_speculators(
    raw: Mapping[str, Any], source: str
) -> dict[str, Any]:
  """Shape in `transformer_layer_config`, method on top, its own words."""
  kind = raw['speculators_model_type']
  if kind not in ('dflash', 'dflash2'):
    raise errors.UserError(
        f'{source}: speculators_model_type is {kind!r}; only dflash and dflash2'
        ' drafters are supported'
    )
  if raw.get('sample_from_anchor'):
    raise errors.UserError(
        f'{source}: sample_from_anchor is set: this drafter predicts from slot'
        ' 0, which DFlash verifies; only drafters without it are supported'
    )
  layer = raw.get('transformer_layer_config') or {}
  width = layer.get('hidden_size', _QWEN3_DEFAULTS['hidden_size'])
  if raw.get('target_hidden_size') not in (None, width):
    raise errors.UserError(
        f'{source}: target_hidden_size is {raw["target_hidden_size"]} and the'
        f' drafter is {width} wide; only drafters as wide as the target are'
        ' supported'
    )
  boundaries = raw.get('aux_hidden_state_layer_ids')
  if boundaries is None:
    raise errors.UserError(
        f'{source}: aux_hidden_state_layer_ids is missing; add it'
    )
  if layer.get('model_type', 'qwen3') == 'qwen3':
    layer = _with_theta(_QWEN3_DEFAULTS | layer, _QWEN3_ROPE_THETA)
  out = dict(layer)
  out |= {key: raw[key] for key in _SPECULATORS_KEYS if key in raw}
  out |= {
      'architectures': [
          'DFlash2DraftModel' if kind == 'dflash2' else 'DFlashDraftModel'
      ],
      'block_size': raw.get('block_size', 8),
      'draft_vocab_size': raw.get('draft_vocab_size', 32000),
      # They number the boundaries between blocks: 0 is the embedding.
      'target_layer_ids': [boundary - 1 for boundary in boundaries],
  }
  if raw.get('sliding_window_non_causal'):
    out['is_causal'] = False
  return out


def _from_muse(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Everything on top; all layers slide and see their whole block."""
  out = _with_theta(_MUSE_DEFAULTS | raw, _MUSE_ROPE_THETA)
  if out.get('layer_types') is None:
    out['layer_types'] = [drafter_config.SLIDING] * out['num_hidden_layers']
  return out | {'is_causal': False}


def _with_theta(raw: Mapping[str, Any], theta: float) -> dict[str, Any]:
  rope = raw.get('rope_parameters') or {}
  if rope.get('rope_theta', raw.get('rope_theta')) is None:
    return raw | {'rope_theta': theta}
  return dict(raw)
