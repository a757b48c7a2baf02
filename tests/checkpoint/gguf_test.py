import dataclasses

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import gguf as checkpoint
from tests import naive
from tests import tiny

F32, F16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16
Q8_0, Q4_1 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1
# Quantised rows come in blocks of 32.
CONFIG = dataclasses.replace(tiny.TARGET, num_layers=2, intermediate_size=64)
TIED = dataclasses.replace(CONFIG, tied_head=True)
NAMES = {
    'attn_norm': 'attention_norm', 'attn_q': 'q', 'attn_k': 'k', 'attn_v': 'v',
    'attn_output': 'o', 'ffn_norm': 'mlp_norm', 'ffn_gate': 'gate',
    'ffn_up': 'up', 'ffn_down': 'down',
}


def tensors(config):
  """GGUF tensors of the tiny target: q and k for interleaved rotary."""
  _, params = tiny.target(config)
  out = {
      'token_embd.weight': params['embedding'],
      'output_norm.weight': params['final_norm']['scale'],
  }
  if not config.tied_head:
    out['output.weight'] = params['head']
  for index in range(config.num_layers):
    for name, ours in NAMES.items():
      (value,) = params[f'layers_{index}'][ours].values()
      if ours in ('q', 'k'):
        value = interleave(np.asarray(value), config.head_dim)
      out[f'blk.{index}.{name}.weight'] = value
  return {name: np.asarray(value) for name, value in out.items()}


def interleave(kernel, head_dim):
  """Row i of a head's first half goes to 2i, of its second half to 2i + 1."""
  out = np.empty_like(kernel)
  half = head_dim // 2
  for row in range(len(kernel)):
    head, feature = divmod(row, head_dim)
    second, i = divmod(feature, half)
    out[head * head_dim + 2 * i + second] = kernel[row]
  return out


def metadata(config):
  """Header keys and values, without the `llama.` of most."""
  return {
      'context_length': config.max_length,
      'embedding_length': config.hidden_size,
      'block_count': config.num_layers,
      'feed_forward_length': config.intermediate_size,
      'attention.head_count': config.num_heads,
      'attention.head_count_kv': config.num_kv_heads,
      'attention.layer_norm_rms_epsilon': config.norm_eps,
      'rope.freq_base': 5000.0,
      'rope.dimension_count': config.head_dim,
      'tokenizer.ggml.tokens': [f't{i}' for i in range(config.vocab_size)],
  }


def write(path, values, header, kind=F32, architecture='llama'):
  """Writes a file; matrices are stored as `kind`, vectors as float32."""
  writer = gguf.GGUFWriter(path, architecture)
  for key, value in header.items():
    if key.startswith('tokenizer'):
      writer.add_array(key, value)
      continue
    add = writer.add_float32 if isinstance(value, float) else (
        writer.add_string if isinstance(value, str) else writer.add_uint32
    )
    add(f'{architecture}.{key}', value)
  for name, value in values.items():
    if value.ndim > 1 and kind in (Q8_0, Q4_1):
      writer.add_tensor(
          name, gguf.quants.quantize(value, kind), raw_dtype=kind
      )
    else:
      half = value.ndim > 1 and kind == F16
      writer.add_tensor(name, value.astype(np.float16) if half else value)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


@pytest.fixture(name='path')
def fixture_path(tmp_path):
  return tmp_path / 'model.gguf'


@pytest.mark.parametrize('config', [CONFIG, TIED], ids=['untied', 'tied'])
@pytest.mark.parametrize(
    'kind, tolerance', [(F32, 0), (F16, 0.01), (Q8_0, 0.1), (Q4_1, 1.0)],
    ids=lambda value: getattr(value, 'name', ''),
)
def test_a_written_model_is_read_back(config, kind, tolerance, path):
  write(path, tensors(config), metadata(config), kind)
  model = checkpoint.load(path)
  assert model.config == dataclasses.replace(
      config, rope_theta=5000.0, norm_eps=float(np.float32(1e-5))
  )
  assert model.metadata['general.architecture'] == 'llama'
  assert model.metadata['tokenizer.ggml.tokens'][63] == 't63'
  _, params = tiny.target(config)

  def compare(found, exact):
    assert found.dtype == jnp.float32
    if exact.ndim > 1 and kind in (Q8_0, Q4_1):
      # Rows are quantised one by one: their order does not matter.
      exact = gguf.quants.dequantize(
          gguf.quants.quantize(np.asarray(exact), kind), kind
      )
    elif exact.ndim > 1 and kind == F16:
      exact = np.float32(np.float16(exact))
    np.testing.assert_array_equal(found, exact)

  jax.tree.map(compare, model.params, params)
  logits, _ = naive.target(model.config, model.params, range(6))
  exact, _ = naive.target(model.config, params, range(6))
  error = np.abs(logits - exact).max() / np.abs(exact).max()
  assert error <= tolerance


def test_scores_are_those_of_interleaved_rotary_on_the_stored_rows(path):
  """What llama.cpp computes: features 2i and 2i + 1 turn together."""
  stored = tensors(CONFIG)
  write(path, stored, metadata(CONFIG))
  ours = naive.double(checkpoint.load(path).params)['layers_0']
  config = dataclasses.replace(CONFIG, rope_theta=5000.0)

  def turned(name, x, position):
    heads = (stored[name] @ x).reshape(-1, config.head_dim)
    pair = heads[:, 0::2] + 1j * heads[:, 1::2]
    i = np.arange(config.head_dim // 2)
    angle = position * 5000.0 ** (-2 * i / config.head_dim)
    return pair * np.exp(1j * angle)

  x = np.random.default_rng(0).normal(size=32)
  query = turned('blk.0.attn_q.weight', x, 9)[0]
  key = turned('blk.0.attn_k.weight', x, 4)[0]
  score = np.vdot(
      naive.heads(config, ours, 'q', x, 9)[0],
      naive.heads(config, ours, 'k', x, 4)[0],
  )
  np.testing.assert_allclose(score, (query * key.conj()).sum().real)


def test_the_dtype_of_the_parameters_may_be_chosen(path):
  write(path, tensors(TIED), metadata(TIED))
  params = checkpoint.load(path, jnp.bfloat16).params
  assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {'bfloat16'}


def test_keys_with_a_usual_value_may_be_left_out(path):
  header = metadata(TIED)
  del header['rope.freq_base'], header['rope.dimension_count']
  write(path, tensors(TIED), header)
  assert checkpoint.load(path).config.rope_theta == 10000.0



@pytest.mark.parametrize('values, header, message', [
    ({'rope_freqs.weight': np.ones(4, np.float32)}, {},
     r"unknown: \['rope_freqs.weight'\]; missing: none"),
    ({'blk.0.attn_q.bias': np.ones(32, np.float32)}, {}, 'attn_q.bias'),
    ({'blk.1.attn_v.weight': None, 'output_norm.weight': None}, {},
     r"none; missing: \['blk.1.attn_v.weight', 'output_norm.weight'\]"),
    ({'blk.1.ffn_up.weight': np.ones((63, 32), np.float32)}, {},
     r'blk.1.ffn_up.weight has shape \(63, 32\).* \(64, 32\)'),
    ({'blk.0.attn_k.weight': np.ones((16, 32), np.int32)}, {},
     'blk.0.attn_k.weight is stored as I32'),
    ({}, {'block_count': 3}, r'missing: \[.*blk.2.attn_k.weight'),
    ({}, {'tokenizer.ggml.tokens': ['a'] * 65}, 'token_embd.weight has shape'),
    ({}, {'rope.scaling.type': 'yarn'}, "rope.scaling.type 'yarn'"),
    ({}, {'rope.dimension_count': 4}, 'dimension_count 4 .* head width 8'),
    *[
        ({}, {key: None}, f'no (llama.)?{key}')
        for key in metadata(TIED) if not key.startswith('rope')
    ],
])
def test_a_bad_file_is_told_apart(values, header, message, path):
  values = tensors(TIED) | values
  header = metadata(TIED) | header
  write(
      path,
      {name: value for name, value in values.items() if value is not None},
      {key: value for key, value in header.items() if value is not None},
  )
  with pytest.raises(errors.UserError, match=message) as error:
    checkpoint.load(path)
  assert str(path) in str(error.value)


def test_another_architecture(path):
  write(path, tensors(TIED), metadata(TIED), architecture='gemma3')
  with pytest.raises(errors.UserError, match="architecture is 'gemma3'"):
    checkpoint.load(path)


def test_a_file_that_is_cut_off_anywhere(path):
  whole = write(path, tensors(TIED), metadata(TIED)).read_bytes()
  # The last tensor's padding may go; its data may not.
  ends = [0, 1, 4, 8, *range(20, len(whole) - 64, len(whole) // 40)]
  for end in [*ends, len(whole) - 64]:
    path.write_bytes(whole[:end])
    with pytest.raises(errors.UserError, match='cut off') as error:
      checkpoint.load(path)
    assert str(path) in str(error.value)


def test_a_file_of_another_kind(path):
  whole = write(path, tensors(TIED), metadata(TIED)).read_bytes()
  path.write_bytes(b'GGML' + whole[4:])
  with pytest.raises(errors.UserError, match='of another kind'):
    checkpoint.load(path)
  path.write_text('{"a": 1}' * 1000)
  with pytest.raises(errors.UserError, match='of another kind'):
    checkpoint.load(path)


@pytest.mark.parametrize('name', ['nothing.gguf', '.'])
def test_no_such_file(name, tmp_path):
  with pytest.raises(errors.UserError, match='no such file'):
    checkpoint.load(tmp_path / name)
