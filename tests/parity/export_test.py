"""Exported drafters inside transformers' own assisted generation."""

import dataclasses
import os

import numpy as np
import pytest

from dflash_jax.checkpoint import drafter as checkpoint
from dflash_jax.checkpoint import export
from tests import tiny

os.environ['HF_HUB_OFFLINE'] = '1'
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
torch.set_num_threads(1)

_VOCABULARY = 8
_CONFIG = dataclasses.replace(
    tiny.DRAFTER, vocab_size=_VOCABULARY, mask_token_id=7,
    target_layer_ids=(2, 0),
)


def _target():
  torch.manual_seed(1)
  config = transformers.Qwen3Config(
      vocab_size=_VOCABULARY, hidden_size=32, num_hidden_layers=4,
      num_attention_heads=4, num_key_value_heads=2, head_dim=8,
      intermediate_size=48, max_position_embeddings=128,
      tie_word_embeddings=False, initializer_range=0.3, eos_token_id=None,
  )
  return transformers.Qwen3ForCausalLM(config).eval()


@pytest.mark.filterwarnings('ignore')
def test_a_v1_export_drafts_in_transformers(tmp_path):
  folder = tmp_path / 'drafter'
  _, params = tiny.drafter(_CONFIG, seed=4)
  checkpoint.save(folder, _CONFIG, params)
  # The call that the printed line makes.
  line = export.commands(folder, 't', _CONFIG)['transformers']
  drafter, info = transformers.MuseGlimmerAssistantModel.from_pretrained(
      folder, key_mapping=export.TRANSFORMERS_NAMES, mask_token_id=7,
      target_layer_ids=[2, 0], output_loading_info=True, dtype=torch.float32,
  )
  for part in ('mask_token_id=7', 'target_layer_ids=[2, 0]', str(folder)):
    assert part in line
  assert not info['missing_keys'] and not info['unexpected_keys'], info
  target = _target()
  for seed in range(6):
    prompt = torch.tensor(
        np.random.default_rng(seed).integers(_VOCABULARY, size=(1, 5 + seed))
    )
    settings = dict(max_new_tokens=24, do_sample=False, pad_token_id=0)
    plain = target.generate(prompt, **settings)
    assisted = target.generate(
        prompt, assistant_model=drafter.eval(), speculation_type='dflash',
        **settings,
    )
    assert assisted.tolist() == plain.tolist()
