"""Targets in Hugging Face folders: what is read, and what is refused."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dflash_jax import errors
from dflash_jax import parallel
from dflash_jax.checkpoint import huggingface
from dflash_jax.nn import rotary
from dflash_jax.target import decoder
from tests import tiny

KINDS = {
    'llama': tiny.TARGET,
    'qwen2': dataclasses.replace(tiny.TARGET, qkv_bias=True, tied_head=True),
    'qwen3': dataclasses.replace(tiny.TARGET, qk_norm=True, head_dim=12),
}
NAMES = {
    'attention_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm',
    'gate': 'mlp.gate_proj', 'up': 'mlp.up_proj', 'down': 'mlp.down_proj',
    'q_norm': 'self_attn.q_norm', 'k_norm': 'self_attn.k_norm',
} | {name: f'self_attn.{name}_proj' for name in 'qkvo'}


def published(config, params):
  """The tensors by their published names."""
  tensors = {
      'model.embed_tokens.weight': params['embedding'],
      'model.norm.weight': params['final_norm']['scale'],
  }
  if 'head' in params:
    tensors['lm_head.weight'] = params['head']
  for index in range(config.num_layers):
    for name, leaves in params[f'layers_{index}'].items():
      for leaf, value in leaves.items():
        end = 'bias' if leaf == 'bias' else 'weight'
        tensors[f'model.layers.{index}.{NAMES[name]}.{end}'] = value
  return {name: np.asarray(value) for name, value in tensors.items()}


def settings(kind):
  config = KINDS[kind]
  return {
      'model_type': kind, 'vocab_size': 64, 'hidden_size': 32,
      'num_hidden_layers': 4, 'num_attention_heads': 4,
      'num_key_value_heads': 2, 'intermediate_size': 48, 'rms_norm_eps': 1e-5,
      'rope_theta': 10000.0, 'max_position_embeddings': 48,
      'head_dim': config.head_dim, 'hidden_act': 'silu',
      'tie_word_embeddings': config.tied_head, 'eos_token_id': 7,
  }


def write(folder, kind='llama', changes=(), tensors=None):
  raw = settings(kind) | dict(changes)
  raw = {key: value for key, value in raw.items() if value != 'absent'}
  (folder / 'config.json').write_text(json.dumps(raw))
  if tensors is None:
    tensors = published(KINDS[kind], tiny.target(KINDS[kind])[1])
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
  return folder


def refused(folder, message):
  with pytest.raises(errors.UserError, match=message) as caught:
    huggingface.load(folder)
  assert str(folder) in str(caught.value)


@pytest.mark.parametrize('kind', KINDS)
def test_each_family_comes_in_whole(kind, tmp_path):
  model = huggingface.load(write(tmp_path, kind))
  assert model.config == KINDS[kind]
  assert model.eos_ids == (7,)
  params = tiny.target(KINDS[kind])[1]
  assert jax.tree.structure(model.params) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, model.params, params)


def test_dtype_and_stop_tokens(tmp_path):
  write(tmp_path)
  (tmp_path / 'generation_config.json').write_text('{"eos_token_id": [9, 3]}')
  model = huggingface.load(tmp_path, jnp.bfloat16)
  assert model.eos_ids == (9, 3)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(model.params)} == {
      'bfloat16'
  }


@pytest.mark.parametrize('where', ['rope_scaling', 'rope_parameters'])
def test_llama3_rope_scaling(where, tmp_path):
  rope = {
      'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0,
      'high_freq_factor': 4.0, 'original_max_position_embeddings': 32,
      'rope_theta': 5e5,
  }
  changes = {where: rope, 'rope_theta': 'absent'}
  config = huggingface.load(write(tmp_path, changes=changes)).config
  assert config.rope_theta == 5e5
  assert config.rope_scaling == rotary.Llama3Scaling(8.0, 1.0, 4.0, 32)
  del rope['factor'], rope['low_freq_factor']
  refused(write(tmp_path, changes=changes), 'no factor, low_freq_factor')


def test_shards(tmp_path):
  write(tmp_path)
  whole = huggingface.load(tmp_path).params
  path = tmp_path / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  path.unlink()
  names = sorted(tensors)
  shards = {'a.safetensors': names[::2], 'b.safetensors': names[1::2]}
  for name, part in shards.items():
    safetensors.numpy.save_file(
        {key: tensors[key] for key in part}, tmp_path / name
    )
  index = {key: name for name, part in shards.items() for key in part}
  (tmp_path / 'model.safetensors.index.json').write_text(
      json.dumps({'weight_map': index})
  )
  jax.tree.map(
      np.testing.assert_array_equal, huggingface.load(tmp_path).params, whole
  )
  (tmp_path / 'b.safetensors').unlink()
  refused(tmp_path, '1 of 2 shards are missing: b.safetensors; download')
  safetensors.numpy.save_file({}, tmp_path / 'b.safetensors')
  refused(tmp_path, f'b.safetensors: has no {names[1]}, which the index')
  (tmp_path / 'model.safetensors.index.json').write_text('{}')
  refused(tmp_path, 'not an index of shards')


def test_onto_a_mesh(tmp_path):
  mesh = parallel.mesh(1, 2)
  write(tmp_path)
  whole = huggingface.load(tmp_path).params
  divided = huggingface.load(tmp_path, mesh=mesh).params
  jax.tree.map(np.testing.assert_array_equal, divided, whole)
  kernel = divided['layers_2']['down']['kernel']
  assert kernel.sharding == parallel.sharding(mesh, ('down', 'kernel'), (32, 48))
  assert {s.data.shape for s in kernel.addressable_shards} == {(32, 24)}


_LOAD_WITHIN = """
import pathlib, resource, sys
import jax
from dflash_jax.checkpoint import huggingface

jax.block_until_ready(jax.numpy.ones(3))
kib = next(
    int(line.split()[1])
    for line in pathlib.Path('/proc/self/status').read_text().splitlines()
    if line.startswith('VmData')
)
limit = kib * 1024 + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
params = huggingface.load(sys.argv[1]).params
print(sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='RLIMIT_DATA of Linux')
def test_memory_stays_near_the_models_size(tmp_path):
  """A model of 130 MB loads where a second copy of it could not lie."""
  config = dataclasses.replace(
      tiny.TARGET, vocab_size=2048, hidden_size=1024, num_layers=6,
      num_heads=8, head_dim=128, intermediate_size=3072,
  )
  shapes = decoder.parameter_shapes(config)
  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
  write(tmp_path, tensors=published(config, zeros), changes={
      'vocab_size': 2048, 'hidden_size': 1024, 'num_hidden_layers': 6,
      'num_attention_heads': 8, 'head_dim': 128, 'intermediate_size': 3072,
  })
  size = (tmp_path / 'model.safetensors').stat().st_size

  def load(room):
    return subprocess.run(
        [sys.executable, '-c', _LOAD_WITHIN, str(tmp_path), str(room)],
        capture_output=True, text=True,
    )

  enough = load(int(1.6 * size))
  assert enough.returncode == 0, enough.stderr
  assert abs(int(enough.stdout) - size) < 1e5
  # The limit does bind.
  assert load(int(0.9 * size)).returncode != 0


def test_a_tied_head_may_be_stored_twice_but_not_differ(tmp_path):
  kind = 'qwen2'
  tensors = published(KINDS[kind], tiny.target(KINDS[kind])[1])
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
  model = huggingface.load(write(tmp_path, kind, tensors=tensors))
  assert model.config.tied_head
  tensors['lm_head.weight'][3, 3] += 1
  refused(write(tmp_path, kind, tensors=tensors), 'differs from it; set tie')


@pytest.mark.parametrize('kind, changes, message', [
    ('llama', {'model_type': 'gemma3'}, "model_type is 'gemma3'; llama, qwen2"),
    ('llama', {'hidden_act': 'gelu'}, "hidden_act is 'gelu'; only 'silu'"),
    ('llama', {'attention_bias': True}, 'attention_bias is True'),
    ('qwen2', {'use_sliding_window': True}, 'use_sliding_window is True'),
    ('llama', {'quantization_config': {'bits': 4}}, 'quantization_config'),
    ('llama', {'rope_scaling': {'type': 'yarn'}}, "rope_type is 'yarn'"),
    ('llama', {'rope_theta': 'absent'}, 'rope_theta is missing'),
    ('llama', {'rope_parameters': {'rope_theta': 5e5}},
     r'rope_theta is \[10000.0, 500000.0\] in different places; keep one'),
    ('llama', {'partial_rotary_factor': 0.5}, 'partial_rotary_factor is 0.5'),
    ('llama', {'rope_parameters': {'partial_rotary_factor': 0.25}},
     'partial_rotary_factor is 0.25'),
    ('llama', {'num_attention_heads': 'absent'}, 'num_attention_heads is miss'),
    ('qwen3', {'head_dim': 'absent'}, 'head_dim is missing'),
    ('llama', {'eos_token_id': None}, 'has an eos_token_id; add the token'),
    ('llama', {'hidden_size': 'wide', 'head_dim': None}, 'wrong type'),
    ('llama', {'num_hidden_layers': 5}, r"missing: \['model.layers.4.*; conv"),
    ('llama', {'tie_word_embeddings': True}, 'ties the head'),
    ('llama', {'vocab_size': 65}, r'embed_tokens.weight has shape \(64, 32\)'),
])
def test_bad_configurations(kind, changes, message, tmp_path):
  refused(write(tmp_path, kind, changes), message)


def test_bad_tensors(tmp_path):
  tensors = published(KINDS['llama'], tiny.target(KINDS['llama'])[1])
  extra = {'model.layers.0.self_attn.q_proj.bias': np.zeros(32, np.float32)}
  refused(write(tmp_path, tensors=tensors | extra), r"unknown: \['model.layers")
  path = tmp_path / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-9])
  refused(tmp_path, 'model.safetensors: cannot be read')
  path.rename(tmp_path / 'pytorch_model.bin')  # Pickle: never opened.
  refused(tmp_path, 'no model.safetensors and no model.safetensors.index.json')


def test_values_that_float16_cannot_hold(tmp_path):
  tensors = published(KINDS['llama'], tiny.target(KINDS['llama'])[1])
  tensors['model.norm.weight'] = tensors['model.norm.weight'] + 1e5
  write(tmp_path, tensors=tensors)
  with pytest.raises(errors.UserError, match='model.norm.weight overflows'):
    huggingface.load(tmp_path, jnp.float16)


def test_nothing_there(tmp_path):
  refused(tmp_path, 'config.json: no readable model configuration')
