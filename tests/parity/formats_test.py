"""Other writers' drafters: what transformers saves, and what it leaves out."""

import os

import jax
import numpy as np
import pytest

from dflash_jax.checkpoint import drafter as checkpoint
from dflash_jax.drafter import formats
from dflash_jax.drafter import model as drafter_model

os.environ['HF_HUB_OFFLINE'] = '1'
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')


@pytest.mark.parametrize('name, defaults, theta', [
    ('Qwen3Config', formats._QWEN3_DEFAULTS, formats._QWEN3_ROPE_THETA),
    ('MuseGlimmerAssistantConfig', formats._MUSE_DEFAULTS,
     formats._MUSE_ROPE_THETA),
])
def test_the_defaults_are_the_classes(name, defaults, theta):
  config = getattr(transformers, name)()
  own = {key: getattr(config, key) for key in defaults if hasattr(config, key)}
  assert own == {key: defaults[key] for key in own}
  assert set(defaults) - set(own) <= {'vocab_size'}
  assert config.rope_parameters['rope_theta'] == theta


def test_a_muse_assistant_computes_the_same(tmp_path):
  """Read from what transformers saved; the window holds the whole context.

  Past it, a single call in transformers does not slide: its mask is made for
  the block alone, and its cache does the rest.
  """
  torch.manual_seed(0)
  reference = transformers.MuseGlimmerAssistantModel(
      transformers.MuseGlimmerAssistantConfig(
          hidden_size=32, intermediate_size=40, num_hidden_layers=2,
          num_attention_heads=4, num_key_value_heads=2, head_dim=8,
          max_position_embeddings=64, sliding_window=32, block_size=5,
          mask_token_id=63, target_layer_ids=[1, 3],
          attn_implementation='eager',
      )
  ).eval()
  reference.save_pretrained(tmp_path)
  config, params = checkpoint.load(tmp_path)
  assert config.is_causal is False and config.window(0) == 32
  rng = np.random.default_rng(1)
  features = rng.normal(size=(1, 14, 2, 32)).astype(np.float32)
  block = rng.normal(size=(1, 1, 5, 32)).astype(np.float32)
  with torch.no_grad():
    expected = reference(
        noise_embeds=torch.tensor(block[0]),
        context_hidden_states=torch.tensor(features).reshape(1, 14, -1),
    ).last_hidden_state
  ours = jax.jit(
      lambda *inputs: drafter_model.Drafter(config).apply(
          {'params': params}, *inputs, method='blocks'
      )
  )(block, np.array([[14]], np.int32), features)
  np.testing.assert_allclose(ours[0], expected, rtol=0, atol=1e-4)
