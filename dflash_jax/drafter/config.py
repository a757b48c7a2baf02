"""Drafter configuration, and its published `config.json` form."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from dflash_jax import errors
from dflash_jax.nn import rotary

FULL, SLIDING = 'full_attention', 'sliding_attention'

# Field -> (key of config.json, default when the key is absent). A field that
# is not listed needs a rule of its own in `from_hf`.
_TOP = {
    'vocab_size': 'vocab_size',
    'hidden_size': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'num_kv_heads': 'num_key_value_heads',
    'head_dim': 'head_dim',
    'intermediate_size': 'intermediate_size',
    'norm_eps': 'rms_norm_eps',
    'max_length': 'max_position_embeddings',
}
_NESTED_DEFAULTS = {
    'output_multiplier': 1.0,
    'final_logit_softcapping': None,
    'input_embedding_scale': 1.0,
}
# What the files may ask for and the drafter does not have.
_ONLY = {
    'attention_bias': False, 'hidden_act': 'silu', 'quantization_config': None
}
# What DFlash 2 adds: convolutions and a selector, each with both of its keys.
_V2_KEYS = (
    'conv_kernel_size', 'conv_group_size', 'selector_rank', 'selector_top_k'
)


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
  """A DFlash or DFlash 2 block drafter.

  Attributes:
    vocab_size: of the target.
    hidden_size: model width D, the target's.
    num_layers: draft layers.
    num_heads: query heads N, free of the target's.
    num_kv_heads: key-value heads M.
    head_dim: head width H.
    intermediate_size: MLP hidden width F.
    norm_eps: epsilon of the RMS norms.
    rope_theta: rotary base (rotate-half over the full head).
    max_length: positions the drafter is meant for.
    layer_types: FULL or SLIDING, one a layer.
    sliding_window: window W of the sliding layers, or None.
    is_causal: causality inside the block for all layers; None means the
      published default: sliding layers causal, full layers not.
    block_size: slots of a block, anchor included; one less is drafted.
    mask_token_id: token of the slots to fill; an unused row of the target's
      vocabulary.
    target_layer_ids: tapped target blocks, zero-based; the feature is the
      residual stream after the block.
    num_target_layers: blocks of the target, or None where a file does not say.
    rope_scaling: of the rotary frequencies (Llama 3.1).
    draft_vocab_size: None drafts through the target's head, over its whole
      vocabulary; otherwise the drafter has a head of its own over so many of
      the target's tokens.
    output_multiplier: scales the logits.
    final_logit_softcapping: c of `c * tanh(logits / c)`, or None.
    input_embedding_scale: scales the embedding rows of the block.
    conv_kernel_size: taps W of the convolutions around every sublayer, or
      None for no convolutions (v1).
    conv_group_size: channels that share a dynamic coefficient.
    selector_rank: width R of the selector's codebooks, or None for no
      selector (v1): every slot drafts its own argmax.
    selector_top_k: candidates K of a slot.
    selector_projected: the codebooks are projections of the target's
      embedding, which trains with few weights; published files hold them
      multiplied out (see `drafter.codebooks`).
  """

  vocab_size: int
  hidden_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  intermediate_size: int
  norm_eps: float
  rope_theta: float
  max_length: int
  layer_types: tuple[str, ...]
  sliding_window: int | None
  is_causal: bool | None
  block_size: int
  mask_token_id: int
  target_layer_ids: tuple[int, ...]
  num_target_layers: int | None
  rope_scaling: rotary.Llama3Scaling | None = None
  draft_vocab_size: int | None = None
  output_multiplier: float = 1.0
  final_logit_softcapping: float | None = None
  input_embedding_scale: float = 1.0
  conv_kernel_size: int | None = None
  conv_group_size: int | None = None
  selector_rank: int | None = None
  selector_top_k: int | None = None
  selector_projected: bool = False

  def __post_init__(self):
    def require(condition: bool, field: str, need: str) -> None:
      if not condition:
        raise errors.UserError(
            f'drafter config: {field} is {getattr(self, field)!r}; it must'
            f' {need}'
        )

    require(self.block_size >= 2, 'block_size', 'be at least 2')
    require(
        0 <= self.mask_token_id < self.vocab_size, 'mask_token_id',
        f'be a row of the vocabulary, 0 to {self.vocab_size - 1}',
    )
    require(
        len(self.layer_types) == self.num_layers
        and set(self.layer_types) <= {FULL, SLIDING}, 'layer_types',
        f'name {FULL} or {SLIDING} for each of {self.num_layers} layers',
    )
    require(
        SLIDING not in self.layer_types or (self.sliding_window or 0) > 0,
        'sliding_window', 'be positive, as there are sliding layers',
    )
    taps, depth = self.target_layer_ids, self.num_target_layers
    require(
        len(taps) > 0 and min(taps) >= 0
        and (depth is None or max(taps) < depth), 'target_layer_ids',
        f'hold zero-based blocks of the {depth or "unknown"}-block target',
    )
    if self.draft_vocab_size is not None:
      require(
          0 < self.draft_vocab_size <= self.vocab_size, 'draft_vocab_size',
          f'be 1 to {self.vocab_size}, the vocabulary',
      )

    for one, other in (_V2_KEYS[:2], _V2_KEYS[2:]):
      missing = (getattr(self, one) is None) != (getattr(self, other) is None)
      require(not missing, one, f'come together with {other}')
    if self.conv_kernel_size is not None:
      require(self.conv_kernel_size > 0, 'conv_kernel_size', 'be positive')
      require(
          self.conv_group_size > 0
          and self.hidden_size % self.conv_group_size == 0, 'conv_group_size',
          f'divide the hidden size {self.hidden_size}',
      )
    if self.selector_rank is not None:
      require(self.selector_rank > 0, 'selector_rank', 'be positive')
      require(
          0 < self.selector_top_k <= self.vocab_size, 'selector_top_k',
          f'be 1 to {self.vocab_size}, the vocabulary',
      )
      require(
          self.draft_vocab_size in (None, self.vocab_size), 'draft_vocab_size',
          'be the vocabulary, as a selector has a row for each of its tokens',
      )

  def causal(self, layer: int) -> bool:
    """Whether attention inside the block is causal in `layer`."""
    if self.is_causal is None:
      return self.layer_types[layer] == SLIDING
    return self.is_causal

  def window(self, layer: int) -> int | None:
    """The sliding window of `layer`, or None for full attention."""
    return self.sliding_window if self.layer_types[layer] == SLIDING else None

  def to_hf(self) -> dict[str, Any]:
    """The published `config.json`: model shape on top, method nested."""
    added = {
        key: getattr(self, key) for key in _V2_KEYS
        if getattr(self, key) is not None
    }
    out = {key: getattr(self, field) for field, key in _TOP.items()}
    out |= {
        'architectures': [
            'DFlash2DraftModel' if added else 'DFlashDraftModel'
        ],
        'model_type': 'qwen3',
        'attention_bias': False,
        'attention_dropout': 0.0,
        'hidden_act': 'silu',
        'rope_theta': self.rope_theta,
        'rope_scaling': rotary.to_hf(self.rope_scaling),
        'layer_types': list(self.layer_types),
        'use_sliding_window': SLIDING in self.layer_types,
        'block_size': self.block_size,
        'dflash_config': {
            'mask_token_id': self.mask_token_id,
            'target_layer_ids': list(self.target_layer_ids),
            **added,
        },
    }
    if self.selector_projected:
      out['dflash_config']['selector_projected'] = True
    for key in (
        'num_target_layers', 'draft_vocab_size', 'sliding_window', 'is_causal'
    ):
      if getattr(self, key) is not None:
        out[key] = getattr(self, key)
    for key, default in _NESTED_DEFAULTS.items():
      if getattr(self, key) != default:
        out['dflash_config'][key] = getattr(self, key)
    return out

  @classmethod
  def from_hf(cls, raw: Mapping[str, Any], source: str) -> 'DrafterConfig':
    """Reads a published `config.json`.

    Method keys are looked up in `dflash_config` first and then on top, since
    published files differ. `target_layer_ids` is required: the default rule is
    wrong for most published drafters.

    Args:
      raw: the parsed file.
      source: its path, for messages.

    Raises:
      errors.UserError: a key is missing, contradictory or of another method.
    """
    nested = raw.get('dflash_config') or {}

    def get(key: str, *default: Any) -> Any:
      if key in nested and key in raw and nested[key] != raw[key]:
        raise errors.UserError(
            f'{source}: {key} is {raw[key]!r} on top and {nested[key]!r} in'
            ' dflash_config; keep one'
        )
      value = nested.get(key, raw.get(key))
      if value is None:
        if not default:
          raise errors.UserError(f'{source}: {key} is missing; add it')
        return default[0]
      return value

    if (kind := get('projector_type', None)) is not None:
      raise errors.UserError(
          f'{source}: projector_type {kind!r} belongs to another method; only'
          ' DFlash and DFlash 2 drafters are supported'
      )
    added = {key: get(key, None) for key in _V2_KEYS}
    if 'DFlash2DraftModel' in (raw.get('architectures') or ()):
      if missing := [key for key, value in added.items() if value is None]:
        raise errors.UserError(
            f'{source}: a DFlash 2 drafter needs {", ".join(missing)}; add them'
            ' to dflash_config'
        )
    for key, supported in _ONLY.items():
      if raw.get(key) not in (None, supported):
        raise errors.UserError(
            f'{source}: {key} is {raw[key]!r}, which is not supported; only'
            f' {supported!r} is'
        )
    theta, scaling = rotary.from_hf(raw, source)
    num_layers = get('num_hidden_layers')
    return cls(
        **{field: get(key) for field, key in _TOP.items()},
        rope_theta=theta,
        rope_scaling=scaling,
        layer_types=tuple(get('layer_types', [FULL] * num_layers)),
        sliding_window=raw.get('sliding_window'),
        is_causal=raw.get('is_causal'),
        block_size=get('block_size'),
        mask_token_id=get('mask_token_id'),
        target_layer_ids=tuple(get('target_layer_ids')),
        num_target_layers=get('num_target_layers', None),
        draft_vocab_size=get('draft_vocab_size', None),
        **{key: get(key, value) for key, value in _NESTED_DEFAULTS.items()},
        **added,
        selector_projected=get('selector_projected', False),
    )


def default_taps(num_taps: int, num_target_layers: int) -> tuple[int, ...]:
  """The paper's tap rule: evenly from block 1 to the third from last.

  For making new drafters only; a published one says its taps.
  """
  if num_taps == 1:
    return (num_target_layers // 2,)
  step = (num_target_layers - 4) / (num_taps - 1)
  return tuple(round(1 + i * step) for i in range(num_taps))
