"""Dense transformers models as ours. Weights are `[out, in]` on both sides."""

import jax.numpy as jnp

from dflash_jax.target import config as target_config
from dflash_jax.target import decoder

_TOP = {
    'model.embed_tokens.weight': ('embedding',),
    'model.norm.weight': ('final_norm', 'scale'),
    'lm_head.weight': ('head',),
}
_LAYER = {
    'input_layernorm': 'attention_norm',
    'post_attention_layernorm': 'mlp_norm',
    'q_proj': 'q',
    'k_proj': 'k',
    'v_proj': 'v',
    'o_proj': 'o',
    'q_norm': 'q_norm',
    'k_norm': 'k_norm',
    'gate_proj': 'gate',
    'up_proj': 'up',
    'down_proj': 'down',
}


def target(model):
  """The decoder and parameters of a Llama, Qwen2 or Qwen3 model."""
  config = model.config
  heads = config.num_attention_heads
  module = decoder.Decoder(target_config.TargetConfig(
      vocab_size=config.vocab_size,
      hidden_size=config.hidden_size,
      num_layers=config.num_hidden_layers,
      num_heads=heads,
      num_kv_heads=config.num_key_value_heads,
      head_dim=getattr(config, 'head_dim', config.hidden_size // heads),
      intermediate_size=config.intermediate_size,
      norm_eps=config.rms_norm_eps,
      rope_theta=config.rope_parameters['rope_theta'],
      max_length=config.max_position_embeddings,
      tied_head=config.tie_word_embeddings,
      qkv_bias=config.model_type == 'qwen2',
      qk_norm=config.model_type == 'qwen3',
  ))
  params = {}
  for name, tensor in model.named_parameters():
    *parents, leaf = _path(name)
    node = params
    for key in parents:
      node = node.setdefault(key, {})
    node[leaf] = jnp.asarray(tensor.detach().numpy().copy())
  return module, params


def _path(name):
  if name in _TOP:
    return _TOP[name]
  index, *_, part, kind = name.removeprefix('model.layers.').split('.')
  matrix = {'weight': 'kernel', 'bias': 'bias'}[kind]
  leaf = 'scale' if part.endswith('norm') else matrix
  return f'layers_{index}', _LAYER[part], leaf
