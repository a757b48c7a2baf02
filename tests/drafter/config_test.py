import dataclasses
import json

import jax
import pytest

from dflash_jax import errors
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import initialize
from dflash_jax.nn import rotary
from tests import tiny

FULL, SLIDING = drafter_config.FULL, drafter_config.SLIDING
SHAPED = dataclasses.replace(
    tiny.DRAFTERS['mixed'],
    is_causal=False,
    output_multiplier=0.25,
    final_logit_softcapping=20.0,
    input_embedding_scale=3.0,
)


def published(**changes):
  """A `config.json` in the older form, with some method keys on top."""
  raw = {
      'architectures': ['DFlashDraftModel'],
      'model_type': 'qwen3',
      'vocab_size': 151936,
      'hidden_size': 2560,
      'num_hidden_layers': 5,
      'num_attention_heads': 32,
      'num_key_value_heads': 8,
      'head_dim': 128,
      'intermediate_size': 9728,
      'rms_norm_eps': 1e-6,
      'max_position_embeddings': 40960,
      'attention_bias': False,
      'rope_theta': 1000000,
      'rope_scaling': None,
      'num_target_layers': 36,
      'block_size': 16,
      'dflash_config': {
          'mask_token_id': 151669, 'target_layer_ids': [1, 9, 17, 25, 33]
      },
  }
  raw |= changes
  return {key: value for key, value in raw.items() if value != 'absent'}


def read(**changes):
  return drafter_config.DrafterConfig.from_hf(published(**changes), 'c.json')


@pytest.mark.parametrize('config', [
    *tiny.DRAFTERS.values(), SHAPED, tiny.OWN_HEAD,
    dataclasses.replace(
        tiny.DRAFTER, num_target_layers=None,
        rope_scaling=rotary.Llama3Scaling(8.0, 1.0, 4.0, 16),
    ),
])
def test_round_trip_through_json(config):
  text = json.dumps(config.to_hf(), allow_nan=False)
  again = drafter_config.DrafterConfig.from_hf(json.loads(text), 'c.json')
  assert again == config
  assert hash(again) == hash(config)


def test_an_older_published_file():
  assert read() == drafter_config.DrafterConfig(
      vocab_size=151936, hidden_size=2560, num_layers=5, num_heads=32,
      num_kv_heads=8, head_dim=128, intermediate_size=9728, norm_eps=1e-6,
      rope_theta=1e6, max_length=40960, layer_types=(FULL,) * 5,
      sliding_window=None, is_causal=None, block_size=16, mask_token_id=151669,
      target_layer_ids=(1, 9, 17, 25, 33), num_target_layers=36,
  )


def test_a_newer_published_file():
  config = read(
      block_size='absent', rope_theta='absent', rope_scaling='absent',
      rope_parameters={'rope_type': 'default', 'rope_theta': 1e7},
      layer_types=[SLIDING] * 4 + [FULL], sliding_window=4096, is_causal=False,
      dflash_config={
          'block_size': 8, 'mask_token_id': 7, 'target_layer_ids': [35],
          'output_multiplier': 0.5, 'final_logit_softcapping': 20.0,
      },
  )
  assert (config.block_size, config.rope_theta) == (8, 1e7)
  assert config.window(0) == 4096 and config.window(4) is None
  assert config.output_multiplier == 0.5
  assert config.final_logit_softcapping == 20.0
  assert config.input_embedding_scale == 1.0


def test_method_keys_may_all_be_on_top_or_in_both_places():
  assert read(
      dflash_config='absent', mask_token_id=151669,
      target_layer_ids=[1, 9, 17, 25, 33],
  ) == read()
  assert read(mask_token_id=151669) == read()


def test_places_that_disagree():
  with pytest.raises(errors.UserError, match=r'c.json: mask_token_id is 3 .*'
                     '151669 in dflash_config; keep one'):
    read(mask_token_id=3)


@pytest.mark.parametrize('key', [
    'vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads',
    'num_key_value_heads', 'head_dim', 'intermediate_size', 'rms_norm_eps',
    'max_position_embeddings', 'rope_theta', 'block_size',
])
def test_a_missing_key_is_named(key):
  with pytest.raises(errors.UserError, match=f'c.json: {key} is missing'):
    read(**{key: 'absent'})


@pytest.mark.parametrize('key', ['mask_token_id', 'target_layer_ids'])
def test_a_missing_method_key_is_named(key):
  nested = dict(published()['dflash_config'])
  del nested[key]
  with pytest.raises(errors.UserError, match=f'c.json: {key} is missing'):
    read(dflash_config=nested)


@pytest.mark.parametrize('changes, message', [
    ({'rope_scaling': {'type': 'yarn', 'factor': 4.0}}, "rope_type is 'yarn'"),
    ({'rope_parameters': {'rope_type': 'llama3'}}, 'scaling has no factor, low'),
    ({'rope_parameters': {'rope_theta': 5.0}}, r'rope_theta is \[5.0, 1000000\]'),
    ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor is 0.5'),
    ({'hidden_act': 'gelu'}, "hidden_act is 'gelu', .* only 'silu' is"),
    ({'quantization_config': {'bits': 4}}, 'quantization_config is'),
    ({'draft_vocab_size': 0}, 'draft_vocab_size is 0; .* 1 to 151936'),
    ({'attention_bias': True}, 'attention_bias'),
    ({'projector_type': 'domino'}, 'projector_type .* another method'),
    ({'selector_rank': 256}, 'selector_rank .* come together'),
    ({'conv_kernel_size': 2}, 'conv_kernel_size .* come together'),
    ({'conv_kernel_size': 2, 'conv_group_size': 7},
     'conv_group_size is 7; .* hidden size 2560'),
    ({'selector_rank': 8, 'selector_top_k': 151937},
     'selector_top_k is 151937; .* 1 to 151936'),
    ({'architectures': ['DFlash2DraftModel'], 'selector_rank': 256},
     'needs conv_kernel_size, conv_group_size, selector_top_k; add them'),
    ({'block_size': 1}, 'block_size is 1'),
    ({'mask_token_id': 151936, 'dflash_config': {'target_layer_ids': [1]}},
     'mask_token_id is 151936; .* 0 to 151935'),
    ({'mask_token_id': -1, 'dflash_config': {'target_layer_ids': [1]}},
     'mask_token_id is -1'),
    ({'num_target_layers': 33}, 'target_layer_ids .* 33-block target'),
    ({'target_layer_ids': [], 'dflash_config': {'mask_token_id': 1}},
     'target_layer_ids'),
    ({'layer_types': [FULL] * 4}, 'layer_types .* each of 5 layers'),
    ({'layer_types': ['linear_attention'] * 5}, 'layer_types'),
    ({'layer_types': [SLIDING] * 5}, 'sliding_window is None'),
])
def test_refusals(changes, message):
  with pytest.raises(errors.UserError, match=message):
    read(**changes)


def test_the_last_block_may_be_tapped():
  config = read(dflash_config={'mask_token_id': 1, 'target_layer_ids': [35]})
  assert config.target_layer_ids == (35,)


@pytest.mark.parametrize('is_causal, expected', [
    ('absent', [True, True, False]),
    (False, [False, False, False]),
    (True, [True, True, True]),
])
def test_causality_rule(is_causal, expected):
  config = read(
      num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL],
      sliding_window=4096, is_causal=is_causal,
  )
  assert [config.causal(layer) for layer in range(3)] == expected
  assert ('is_causal' in config.to_hf()) == (is_causal != 'absent')


@pytest.mark.parametrize('num_taps, num_target_layers, taps', [
    (5, 24, (1, 6, 11, 16, 21)),
    (5, 36, (1, 9, 17, 25, 33)),
    (5, 32, (1, 8, 15, 22, 29)),
    (5, 64, (1, 16, 31, 46, 61)),
    (5, 52, (1, 13, 25, 37, 49)),
    (6, 60, (1, 12, 23, 35, 46, 57)),
    (1, 30, (15,)),
    (2, 30, (1, 27)),
])
def test_default_taps_of_published_drafters(num_taps, num_target_layers, taps):
  assert drafter_config.default_taps(num_taps, num_target_layers) == taps


# Published counts: of the drafters for Qwen3-0.6B, 4B and 8B, and of the
# DFlash 2 drafter for Qwen3.8-27B.
@pytest.mark.parametrize('hidden, mlp, added, millions', [
    (1024, 3072, {}, 104.9),
    (2560, 9728, {}, 537.4),
    (4096, 12288, {}, 1048.6),
    (5120, 17408, {
        'conv_kernel_size': 2, 'conv_group_size': 16, 'selector_rank': 256,
        'selector_top_k': 16, 'vocab_size': 248320,
    }, 1924.4),
])
def test_published_parameter_counts(hidden, mlp, added, millions):
  config = read(hidden_size=hidden, intermediate_size=mlp, **added)
  assert abs(count(shapes(config)) / 1e6 - millions) < 0.05


def test_the_convolutions_of_the_4b_drafter_have_16_486_400_parameters():
  plain = read()
  with_conv = dataclasses.replace(plain, conv_kernel_size=2, conv_group_size=16)
  assert count(shapes(with_conv)) - count(shapes(plain)) == 16_486_400
  projected = dataclasses.replace(
      plain, selector_rank=256, selector_top_k=16, selector_projected=True
  )
  # The small form of the selector that the ablation's 2.0M speak of.
  assert count(shapes(projected)['selector']) == 3 * 2560 * 256


def shapes(config):
  return jax.eval_shape(
      lambda key: initialize.from_scratch(config, key), jax.random.key(0)
  )


def count(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))
