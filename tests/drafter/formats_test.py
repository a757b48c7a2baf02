"""What other writers' configurations say, in the published words."""

import pytest

from dflash_jax import errors
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import formats
from tests import tiny

FULL, SLIDING = tiny.FULL, tiny.SLIDING


def speculators(layer=(), **changes):
  """As speculators 0.x saves it, defaults of the layers' class left out."""
  raw = {
      'architectures': ['DFlashSpeculator'],
      'speculators_model_type': 'dflash',
      'aux_hidden_state_layer_ids': [2, 18, 34],
      'block_size': 8,
      'draft_vocab_size': 32000,
      'mask_token_id': 151669,
      'sample_from_anchor': False,
      'sliding_window_non_causal': False,
      'target_hidden_size': None,
      'transformer_layer_config': {
          'model_type': 'qwen3', 'hidden_size': 2560, 'num_hidden_layers': 3,
          'num_key_value_heads': 8, 'intermediate_size': 9728,
          'rope_parameters': {'rope_theta': 1e6, 'rope_type': 'default'},
          'layer_types': [SLIDING, SLIDING, FULL], 'sliding_window': 2048,
          **dict(layer),
      },
  } | changes
  return read({key: value for key, value in raw.items() if value != 'absent'})


def read(raw):
  return drafter_config.DrafterConfig.from_hf(
      formats.published(raw, 'c.json'), 'c.json'
  )


def test_speculators():
  assert speculators() == drafter_config.DrafterConfig(
      vocab_size=151936, hidden_size=2560, num_layers=3, num_heads=32,
      num_kv_heads=8, head_dim=128, intermediate_size=9728, norm_eps=1e-6,
      rope_theta=1e6, max_length=32768, layer_types=(SLIDING, SLIDING, FULL),
      sliding_window=2048, is_causal=None, block_size=8, mask_token_id=151669,
      target_layer_ids=(1, 17, 33), num_target_layers=None,
      draft_vocab_size=32000,
  )


def test_what_speculators_leaves_out():
  config = speculators(block_size='absent', draft_vocab_size='absent')
  assert (config.block_size, config.draft_vocab_size) == (8, 32000)
  config = speculators({'rope_parameters': None, 'layer_types': None})
  assert config.rope_theta == 1e4 and config.layer_types == (FULL,) * 3
  config = speculators(sliding_window_non_causal=True)
  assert [config.causal(i) for i in range(3)] == [False] * 3
  config = speculators()
  assert [config.causal(i) for i in range(3)] == [True, True, False]


def test_dflash_2_of_speculators():
  config = speculators(
      speculators_model_type='dflash2', draft_vocab_size=151936,
      conv_kernel_size=2, conv_group_size=16, selector_rank=256,
      selector_top_k=16,
  )
  assert (config.conv_kernel_size, config.conv_group_size) == (2, 16)
  assert (config.selector_rank, config.selector_top_k) == (256, 16)


@pytest.mark.parametrize('changes, message', [
    ({'speculators_model_type': 'eagle3'}, "'eagle3'; only dflash"),
    ({'sample_from_anchor': True}, 'sample_from_anchor is set'),
    ({'target_hidden_size': 4096}, '4096 and the drafter is 2560 wide'),
    ({'aux_hidden_state_layer_ids': None}, 'layer_ids is missing; add it'),
    # Boundary 0 is the embedding.
    ({'aux_hidden_state_layer_ids': [0, 2]}, r'target_layer_ids is \(-1, 1\)'),
    ({'mask_token_id': None}, 'mask_token_id is missing'),
    ({'draft_vocab_size': 151937}, 'draft_vocab_size is 151937'),
    ({'speculators_model_type': 'dflash2'}, 'needs conv_kernel_size'),
    ({'selector_rank': 8, 'selector_top_k': 4}, 'draft_vocab_size is 32000'),
    ({'layer': {'attention_bias': True}}, 'attention_bias is True'),
    ({'layer': {'model_type': 'llama'}}, 'vocab_size is missing'),
])
def test_speculators_refusals(changes, message):
  with pytest.raises(errors.UserError, match=message):
    speculators(**changes)


def test_the_muse_assistant():
  config = read({'model_type': 'muse_glimmer_assistant'})
  assert config == drafter_config.DrafterConfig(
      vocab_size=202048, hidden_size=6656, num_layers=5, num_heads=32,
      num_kv_heads=8, head_dim=128, intermediate_size=19968, norm_eps=1e-5,
      rope_theta=5e5, max_length=131072, layer_types=(SLIDING,) * 5,
      sliding_window=2048, is_causal=False, block_size=16,
      mask_token_id=201818, target_layer_ids=(1, 13, 25, 37, 49),
      num_target_layers=None,
  )
  config = read({
      'model_type': 'muse_glimmer_assistant', 'num_hidden_layers': 2,
      'layer_types': [FULL, SLIDING], 'rope_parameters': {'rope_theta': 1e4},
  })
  assert config.layer_types == (FULL, SLIDING) and config.rope_theta == 1e4


def test_a_published_file_stays_as_it_is():
  raw = tiny.DRAFTER.to_hf()
  assert formats.published(raw, 'c.json') is raw
