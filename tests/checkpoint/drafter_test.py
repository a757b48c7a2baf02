import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dflash_jax import errors
from dflash_jax.checkpoint import drafter as drafter_files
from tests import tiny


def saved(tmp_path, dtype=jnp.float32, config=tiny.DRAFTER):
  params = jax.tree.map(lambda x: x.astype(dtype), tiny.drafter(config)[1])
  drafter_files.save(tmp_path / 'd', config, params)
  return tmp_path / 'd', params


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_round_trip(tmp_path, dtype):
  folder, params = saved(tmp_path, dtype)
  config, loaded = drafter_files.load(folder, dtype)
  assert config == tiny.DRAFTER
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  for ours, theirs in zip(jax.tree.leaves(loaded), jax.tree.leaves(params)):
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)


def test_a_five_layer_drafter_has_the_published_58_tensors(tmp_path):
  config = dataclasses.replace(
      tiny.DRAFTER, num_layers=5, layer_types=(tiny.FULL,) * 5
  )
  folder, _ = saved(tmp_path, config=config)
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  names = [
      'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj',
      'self_attn.o_proj', 'self_attn.q_norm', 'self_attn.k_norm',
      'mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj', 'input_layernorm',
      'post_attention_layernorm',
  ]
  published = {f'layers.{i}.{name}.weight' for i in range(5) for name in names}
  published |= {'fc.weight', 'hidden_norm.weight', 'norm.weight'}
  assert set(tensors) == published and len(tensors) == 58
  assert tensors['fc.weight'].shape == (32, 64)
  assert tensors['layers.4.self_attn.k_norm.weight'].shape == (6,)


@pytest.mark.parametrize('change, message', [
    (lambda t: t.pop('norm.weight'), r'missing: \[.norm.weight'),
    (lambda t: t.update(extra=np.zeros(1)), r'unknown: \[.extra'),
    (lambda t: t.update({'fc.weight': np.zeros((3, 3))}), r'\(3, 3\)'),
])
def test_tensors_that_do_not_fit(tmp_path, change, message):
  folder, _ = saved(tmp_path)
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  change(tensors)
  safetensors.numpy.save_file(tensors, path)
  with pytest.raises(errors.UserError, match=message) as caught:
    drafter_files.load(folder)
  assert str(folder) in str(caught.value)


def test_a_five_layer_dflash_2_drafter_has_the_published_81_tensors(tmp_path):
  config = dataclasses.replace(
      tiny.DRAFTERS['v2'], num_layers=5, layer_types=(tiny.FULL,) * 5
  )
  folder, params = saved(tmp_path, config=config)
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  assert len(tensors) == 81
  assert tensors['layers.4.mlp_conv.base_kernel'].shape == (2, 2, 32)
  assert tensors['layers.0.attention_conv.kernel_projection.weight'].shape == (
      16, 32
  )
  for name in ('predecessor_codebook', 'successor_codebook'):
    assert tensors[f'candidate_selector.{name}'].shape == (64, 3)
  raw = json.loads((folder / 'config.json').read_text())
  assert raw['architectures'] == ['DFlash2DraftModel']
  loaded, again = drafter_files.load(folder)
  assert loaded == config
  jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize('kind, name, other', [
    ('v2', 'candidate_selector.successor_codebook',
     'candidate_selector.successor_codebook.weight'),
    ('full', 'fc.weight', 'encoder.fc.weight'),
    ('full', 'hidden_norm.weight', 'encoder.output_norm_enc.weight'),
])
def test_names_of_other_writers(tmp_path, kind, name, other):
  folder, params = saved(tmp_path, config=tiny.DRAFTERS[kind])
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  both = tensors | {other: tensors[name]}
  tensors[other] = tensors.pop(name)
  safetensors.numpy.save_file(tensors, path)
  jax.tree.map(
      np.testing.assert_array_equal, drafter_files.load(folder)[1], params
  )
  safetensors.numpy.save_file(both, path)
  with pytest.raises(errors.UserError, match='holds both .* keep one'):
    drafter_files.load(folder)


def test_a_dflash_2_drafter_read_without_its_selector(tmp_path):
  """A v1 reader of such a file would run, and accept little."""
  folder, _ = saved(tmp_path, config=tiny.DRAFTERS['v2'])
  path = folder / 'config.json'
  raw = json.loads(path.read_text())
  del raw['dflash_config']['selector_rank']
  path.write_text(json.dumps(raw))
  with pytest.raises(errors.UserError, match='needs selector_rank; add'):
    drafter_files.load(folder)
  raw['architectures'] = ['DFlashDraftModel']
  del raw['dflash_config']['selector_top_k']
  path.write_text(json.dumps(raw))
  with pytest.raises(errors.UserError, match='unknown: .*candidate_selector'):
    drafter_files.load(folder)


def test_damaged_files(tmp_path):
  with pytest.raises(errors.UserError, match='config.json.*drafter'):
    drafter_files.load(tmp_path)
  folder, _ = saved(tmp_path)
  path = folder / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(errors.UserError, match='model.safetensors'):
    drafter_files.load(folder)
  (folder / 'config.json').write_text('{')
  with pytest.raises(errors.UserError, match='config.json'):
    drafter_files.load(folder)


@pytest.mark.parametrize('text, message', [
    ('[]', 'not a JSON object'),
    ('{"dflash_config": 3}', 'wrong type'),
    ('{}', 'is missing; add it'),
])
def test_a_malformed_configuration(tmp_path, text, message):
  folder, _ = saved(tmp_path)
  (folder / 'config.json').write_text(text)
  with pytest.raises(errors.UserError, match=message) as caught:
    drafter_files.load(folder)
  assert str(folder / 'config.json') in str(caught.value)


@pytest.mark.parametrize('key, value', [
    ('num_hidden_layers', 'two'), ('block_size', '5'), ('layer_types', 5),
])
def test_a_value_of_the_wrong_type(tmp_path, key, value):
  folder, _ = saved(tmp_path)
  path = folder / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
  with pytest.raises(errors.UserError, match='config.json: a value has the'):
    drafter_files.load(folder)


def test_missing_tensors_file(tmp_path):
  folder, _ = saved(tmp_path)
  (folder / 'model.safetensors').unlink()
  with pytest.raises(errors.UserError, match='no model.safetensors'):
    drafter_files.load(folder)


def test_float16_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match='not float16'):
    drafter_files.load(tmp_path, jnp.float16)


def test_a_failed_save_leaves_the_old_drafter(tmp_path, monkeypatch):
  folder, params = saved(tmp_path)

  def fail(*args, **kwargs):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(safetensors.numpy, 'save_file', fail)
  with pytest.raises(errors.UserError, match='No space left'):
    drafter_files.save(folder, tiny.DRAFTER, params)
  assert drafter_files.load(folder)[0] == tiny.DRAFTER
  assert [p.name for p in tmp_path.iterdir()] == ['d']


def test_the_config_says_where_the_tensors_go(tmp_path):
  folder, _ = saved(tmp_path, jnp.bfloat16)
  raw = json.loads((folder / 'config.json').read_text())
  assert raw['architectures'] == ['DFlashDraftModel']
  assert raw['dtype'] == 'bfloat16'
  assert raw['dflash_config']['target_layer_ids'] == [3, 1]


def speculators(folder, **changes):
  """A drafter in speculators' layout, and what it holds."""
  config, params = tiny.OWN_HEAD, tiny.drafter(tiny.OWN_HEAD)[1]
  plain = dataclasses.replace(config, draft_vocab_size=None)
  drafter_files.save(folder, plain, params)
  ids = np.asarray(params['head_ids'])
  chosen = np.zeros(config.vocab_size, bool)
  chosen[ids] = True
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path) | {
      'lm_head.weight': np.asarray(params['head']['kernel']),
      'd2t': ids - np.arange(len(ids)), 't2d': chosen,
      'embed_tokens.weight': np.zeros((64, 32), np.float32),
  } | changes
  safetensors.numpy.save_file(
      {k: v for k, v in tensors.items() if v is not None}, path
  )
  raw = json.loads((folder / 'config.json').read_text())
  method = raw.pop('dflash_config')
  (folder / 'config.json').write_text(json.dumps({
      'speculators_model_type': 'dflash', 'transformer_layer_config': raw,
      'block_size': raw.pop('block_size'), 'draft_vocab_size': 20,
      'mask_token_id': method['mask_token_id'],
      'aux_hidden_state_layer_ids': [
          tap + 1 for tap in method['target_layer_ids']
      ],
  }))
  return config, params


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_speculators_with_a_head_of_its_own(tmp_path, dtype):
  config, params = speculators(tmp_path)
  loaded, again = drafter_files.load(tmp_path, dtype)
  assert loaded == config
  assert jax.tree.structure(again) == jax.tree.structure(params)
  # Bfloat16 would round the ids.
  np.testing.assert_array_equal(again['head_ids'], params['head_ids'])
  jax.tree.map(
      lambda ours, theirs: np.testing.assert_array_equal(
          ours, theirs.astype(ours.dtype)
      ), again, params,
  )


def test_speculators_with_the_whole_vocabulary(tmp_path):
  head = np.ones((64, 32), np.float32)
  speculators(tmp_path, **{'lm_head.weight': head, 'd2t': None, 't2d': None})
  path = tmp_path / 'config.json'
  raw = json.loads(path.read_text()) | {'draft_vocab_size': 64}
  path.write_text(json.dumps(raw))
  config, params = drafter_files.load(tmp_path)
  assert config.draft_vocab_size == config.vocab_size == 64
  np.testing.assert_array_equal(params['head_ids'], np.arange(64))


OFFSETS = np.arange(20) * 2 + 1


@pytest.mark.parametrize('changes, message', [
    ({'d2t': None}, r'missing: \[.d2t'),
    ({'lm_head.weight': None}, r'missing: \[.lm_head.weight'),
    ({'lm_head.weight': np.zeros((64, 32))}, r'\(64, 32\)'),
    ({'d2t': OFFSETS[:-1]}, r'd2t is int64 of shape \(19,\)'),
    ({'d2t': OFFSETS * 1.0}, 'd2t is float64'),
    # Ids, as some would write, instead of offsets.
    ({'d2t': OFFSETS + np.arange(20)}, 'token ids below 64'),
    ({'d2t': OFFSETS[::-1].copy()}, 'does not lead to rising token ids'),
    ({'d2t': OFFSETS - 1}, 't2d and d2t name different tokens'),
    ({'extra': np.zeros(1)}, r'unknown: \[.extra'),
])
def test_speculators_tensors_that_do_not_fit(tmp_path, changes, message):
  speculators(tmp_path, **changes)
  with pytest.raises(errors.UserError, match=message):
    drafter_files.load(tmp_path)


def test_a_head_of_its_own_has_no_place_in_the_published_layout(tmp_path):
  with pytest.raises(errors.UserError, match='a head of its own'):
    drafter_files.save(
        tmp_path / 'd', tiny.OWN_HEAD, tiny.drafter(tiny.OWN_HEAD)[1]
    )
  assert not (tmp_path / 'd').exists()
