"""Tests of reading vocabularies out of GGUF metadata."""

import json

import pytest

from dflash_jax import errors
from dflash_jax.data import bpe
from dflash_jax.data import tokenizer

_CONTROL = 3


@pytest.fixture(name='metadata')
def fixture_metadata():
  """A vocabulary of the 256 bytes, some merges, and tokens of every kind."""
  trained = bpe.train_bpe(
      ['the cat and the hat, the end 12 34  56'] * 3,
      270,
      ('<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|spare|>'),
  )
  tokens = sorted(trained.backend.get_vocab().items(), key=lambda t: t[1])
  tokens = [token for token, _ in tokens]
  merges = json.loads(trained.backend.to_str())['model']['merges']
  return {
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': 'smollm',
      'tokenizer.ggml.tokens': [*tokens, '<think>', '[PAD]'],
      'tokenizer.ggml.token_type': (
          [_CONTROL] * 4 + [1] * (len(tokens) - 4) + [4, 5]
      ),
      'tokenizer.ggml.merges': [' '.join(merge) for merge in merges],
      'tokenizer.ggml.bos_token_id': 1,
      'tokenizer.ggml.eos_token_id': 2,
  }


def test_reads_what_the_vocabulary_says(metadata):
  built = tokenizer.Tokenizer.from_gguf(metadata)
  assert built.vocab_size == len(metadata['tokenizer.ggml.tokens'])
  assert built.special_tokens == {
      '<|endoftext|>': 0, '<|im_start|>': 1, '<|im_end|>': 2, '<|spare|>': 3
  }
  assert (built.bos_id, built.eos_ids, built.unk_id) == (1, (2, 0), None)
  assert built.pad_id == 2
  assert built.unused_ids == (built.vocab_size - 1,)
  assert built.chat_template is None
  assert built.encode('a<think>b')[1] == built.vocab_size - 2
  assert len(built.encode('[PAD]')) > 1
  assert built.decode(built.encode('the <|im_end|> hat')) == (
      'the <|im_end|> hat'
  )


def test_more_stop_tokens(metadata):
  metadata['tokenizer.ggml.eot_token_id'] = 3
  built = tokenizer.Tokenizer.from_gguf(metadata)
  assert built.eos_ids == (2, 3, 0)


@pytest.mark.parametrize('family, explicit, starts', [
    ('smollm', None, False),
    ('smollm', True, True),
    ('qwen2', None, False),
    ('llama-bpe', None, True),
    ('llama-bpe', False, False),
])
def test_bos(metadata, family, explicit, starts):
  metadata['tokenizer.ggml.pre'] = family
  if explicit is not None:
    metadata['tokenizer.ggml.add_bos_token'] = explicit
  built = tokenizer.Tokenizer.from_gguf(metadata)
  plain = built.encode('the end')
  assert built.encode('the end', add_special=True) == [1] * starts + plain
  del metadata['tokenizer.ggml.bos_token_id']
  built = tokenizer.Tokenizer.from_gguf(metadata)
  assert built.encode('the end', add_special=True) == plain


@pytest.mark.parametrize('key', [
    'model', 'pre', 'tokens', 'token_type', 'merges', 'eos_token_id'
])
def test_missing_key(metadata, key):
  del metadata[f'tokenizer.ggml.{key}']
  with pytest.raises(errors.UserError, match=f'tokenizer.ggml.{key}'):
    tokenizer.Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize('key, value, message', [
    ('model', 'llama', "model is 'llama'; only byte-level BPE"),
    ('pre', 'tekken', "pre is 'tekken'; .*smollm, qwen2, llama-bpe"),
    ('token_type', [1], 'token_type has 1 entries for'),
    ('eos_token_id', 999, 'eos_token_id is 999, but the vocabulary has'),
    ('padding_token_id', -1, 'padding_token_id is -1'),
    ('merges', ['t h e'], "merges has 't h e'"),
    ('merges', ['q zz'], "merges has 'q zz'"),
    ('merges', ['z z'], "merges has 'z z'"),
])
def test_contradiction(metadata, key, value, message):
  metadata[f'tokenizer.ggml.{key}'] = value
  with pytest.raises(errors.UserError, match=message):
    tokenizer.Tokenizer.from_gguf(metadata)


def test_a_token_twice(metadata):
  metadata['tokenizer.ggml.tokens'][-1] = 'a'
  with pytest.raises(errors.UserError, match="tokens has 'a' twice"):
    tokenizer.Tokenizer.from_gguf(metadata)
