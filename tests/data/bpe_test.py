"""Tests of training a small vocabulary."""

import pytest

from dflash_jax import errors
from dflash_jax.data import bpe
from dflash_jax.data import stdlib
from dflash_jax.data import tokenizer


@pytest.fixture(name='texts', scope='module')
def fixture_texts():
  return [text for name, text in stdlib.sources() if name.startswith('json/')]


def test_learns_a_vocabulary(texts):
  trained = bpe.train_bpe(texts, 1000)
  assert trained.vocab_size == 1000
  assert trained.special_tokens == {'<|endoftext|>': 0, '<|mask|>': 1}
  assert (trained.bos_id, trained.eos_ids, trained.pad_id) == (None, (0,), 0)
  assert tokenizer.unused_special_token(trained) == 1
  joined = '\n'.join(texts) + ' été 日本 \x04\x00'
  ids = trained.encode(joined)
  assert trained.decode(ids) == joined
  assert len(ids) < len(joined) / 2
  assert trained.encode('a<|mask|>', add_special=True)[-1] == 1
  assert len(trained.encode('123')) == 3


def test_same_texts_same_vocabulary(texts):
  once, again = (bpe.train_bpe(texts, 600) for _ in range(2))
  assert once.backend.to_str() == again.backend.to_str()


def test_few_words_give_fewer_tokens():
  trained = bpe.train_bpe(['ab ab'], 1000)
  assert trained.vocab_size == 256 + 2 + 2
  assert bpe.train_bpe([], 300).vocab_size == 258


def test_too_small():
  with pytest.raises(errors.UserError, match='257; .* alone take 258'):
    bpe.train_bpe(['a'], 257)
  with pytest.raises(errors.UserError, match='special_tokens needs one'):
    bpe.train_bpe(['a'], 300, special_tokens=())
