"""Tests of the tokenizer, the real one of SmolLM2 included."""

import dataclasses
import json

import pytest

from dflash_jax import errors
from dflash_jax.data import bpe
from dflash_jax.data import prompts
from dflash_jax.data import stdlib
from dflash_jax.data import tokenizer as tokenizer_lib

_USER = ({'role': 'user', 'content': 'Hi é'},)


@pytest.fixture(name='tiny', scope='module')
def fixture_tiny():
  return bpe.train_bpe(['the cat and the hat'] * 3, 280)


@pytest.fixture(name='smollm2', scope='module')
def fixture_smollm2(smollm2_metadata):
  return tokenizer_lib.Tokenizer.from_gguf(smollm2_metadata)


def test_no_template(tiny):
  with pytest.raises(errors.UserError, match='no chat template; use plain'):
    tiny.encode_prompt(prompts.Prompt('a', _USER))


def test_template_variables(tiny):
  template = (
      '{{ bos_token is defined }} {{ eos_token }} {{ tools is none }}'
      ' {{ enable_thinking }} {{ add_generation_prompt }}'
  )
  tokenizer = dataclasses.replace(tiny, chat_template=template)
  assert tokenizer.render(
      _USER, add_generation_prompt=False, enable_thinking=False
  ) == 'False <|endoftext|> True False False'
  tokenizer = dataclasses.replace(tokenizer, bos_id=1)
  assert tokenizer.render(_USER) == 'True <|endoftext|> True  True'


def test_encode_prompt(tiny):
  tokenizer = dataclasses.replace(
      tiny, bos_id=1, add_bos=True,
      chat_template='<|mask|>{{ messages[0].content }}<|endoftext|>',
  )
  text = prompts.Prompt('a', text='the cat')
  assert tokenizer.encode_prompt(text) == [1, *tiny.encode('the cat')]
  # The template alone decides where a chat starts.
  chat = prompts.Prompt('b', _USER)
  assert tokenizer.encode_prompt(chat) == [1, *tiny.encode('Hi é'), 0]


def test_half_a_pair(tiny):
  with pytest.raises(errors.UserError, match='cannot be written as UTF-8'):
    tiny.encode('a\ud83d')


def test_mask_token(tiny):
  mask = tokenizer_lib.unused_special_token
  three = bpe.train_bpe(['a'], 300, ('<|end|>', '<|x|>', '<|y|>'))
  assert mask(three) == 2
  assert mask(dataclasses.replace(three, chat_template='a <|y|> b')) == 1
  assert mask(dataclasses.replace(three, bos_id=2)) == 1
  assert mask(dataclasses.replace(three, unk_id=2)) == 1
  assert mask(dataclasses.replace(three, eos_ids=(0, 2))) == 1
  full = dataclasses.replace(three, bos_id=1, pad_id=2)
  assert mask(dataclasses.replace(full, unused_ids=(9, 8))) == 8
  with pytest.raises(errors.UserError, match='every control token'):
    mask(full)


def test_save_and_load(tiny, tmp_path):
  tokenizer = dataclasses.replace(
      tiny, chat_template='{{ "é" }}', eos_ids=(0, 1), unused_ids=(7,)
  )
  text = 'the hat é <|mask|> 12'
  tokenizer.decode(tokenizer.encode(text))
  tokenizer.save(tmp_path / 'tokenizer.json')
  loaded = tokenizer_lib.Tokenizer.load(tmp_path / 'tokenizer.json')
  for field in dataclasses.fields(tokenizer):
    if field.name != 'backend':
      assert getattr(loaded, field.name) == getattr(tokenizer, field.name)
  assert loaded.backend.to_str() == tokenizer.backend.to_str()
  assert loaded.encode(text) == tokenizer.encode(text)
  assert loaded.decode(loaded.encode(text)) == text


def test_load_of_something_else(tiny, tmp_path):
  with pytest.raises(errors.UserError, match='gone.json: No such file'):
    tokenizer_lib.Tokenizer.load(tmp_path / 'gone.json')
  path = tmp_path / 'tokenizer.json'
  tiny.save(path)
  whole = path.read_text(encoding='utf-8')
  fields = json.loads(whole)
  for content in (
      '', '[]', '{}', whole[: len(whole) // 2],
      json.dumps({**fields, 'more': 1}), json.dumps({**fields, 'backend': {}}),
      json.dumps({k: v for k, v in fields.items() if k != 'pad_id'}),
  ):
    path.write_text(content, encoding='utf-8')
    with pytest.raises(errors.UserError, match='is not a tokenizer saved by'):
      tokenizer_lib.Tokenizer.load(path)


@pytest.mark.download
def test_smollm2(smollm2):
  assert smollm2.vocab_size == 49152
  assert (smollm2.bos_id, smollm2.eos_ids) == (1, (2, 0))
  assert (smollm2.pad_id, smollm2.unk_id) == (2, 0)
  assert smollm2.special_tokens['<|im_end|>'] == 2
  assert len(smollm2.special_tokens) == 17
  mask = tokenizer_lib.unused_special_token(smollm2)
  assert smollm2.decode([mask]) == '<empty_output>'


@pytest.mark.download
def test_smollm2_chat(smollm2):
  text = (
      '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained'
      ' by Hugging Face<|im_end|>\n<|im_start|>user\nHi é<|im_end|>\n'
      '<|im_start|>assistant\n'
  )
  assert smollm2.render(_USER) == text
  system = ({'role': 'system', 'content': 'Be brief.'},)
  assert smollm2.render(system + _USER, add_generation_prompt=False) == (
      '<|im_start|>system\nBe brief.<|im_end|>\n'
      '<|im_start|>user\nHi é<|im_end|>\n'
  )
  ids = smollm2.encode_prompt(prompts.Prompt('a', _USER))
  assert ids == smollm2.encode(text)
  assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)


@pytest.mark.download
def test_smollm2_round_trips(smollm2, tmp_path):
  smollm2.save(tmp_path / 'tokenizer.json')
  loaded = tokenizer_lib.Tokenizer.load(tmp_path / 'tokenizer.json')
  texts = [text for _, text in stdlib.sources()[::40]]
  texts += ['', ' ', '\n\n\n', '日本語 👩‍👩‍👧 \u0000 <|im_end|>', 'x\u00a0y\u2028z']
  for text in texts:
    # The alphabet of SmolLM2 lacks eight bytes of valid UTF-8.
    kept = text.translate(dict.fromkeys(b'\x04\x06\x13\x14\x16\x1d'))
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == kept
    assert loaded.encode(text) == ids


@pytest.mark.download
def test_smollm2_drops_bytes_that_it_lacks(smollm2):
  assert smollm2.decode(smollm2.encode('a\x04b')) == 'ab'
  with pytest.raises(errors.UserError, match="'p' has only bytes that the"):
    smollm2.encode_prompt(prompts.Prompt('p', text='\x04'))
