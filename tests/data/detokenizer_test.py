"""Tests of streaming text out of tokens."""

import random

import pytest

from dflash_jax.data import bpe
from dflash_jax.data import detokenizer

_TEXTS = [
    'plain', 'naïve café', '日本語のテキスト', '👩‍👩‍👧 family 🇫🇷',
    'a\u0301\x00\x07\n\r\t',
    '<|mask|>mid<|endoftext|>',
]


@pytest.fixture(name='tokenizer', scope='module')
def fixture_tokenizer():
  return bpe.train_bpe(_TEXTS * 2, 300)


def _stream(tokenizer, chunks):
  stream = detokenizer.Detokenizer(tokenizer)
  pieces = [stream.push(chunk) for chunk in chunks]
  return [*pieces, stream.flush()]


@pytest.mark.parametrize('text', _TEXTS)
def test_pieces_join_to_the_text(tokenizer, text):
  ids = tokenizer.encode(text)
  pieces = _stream(tokenizer, [[index] for index in ids])
  assert ''.join(pieces) == text
  assert not any('\ufffd' in piece for piece in pieces)


def test_text_comes_as_soon_as_it_is_certain(tokenizer):
  byte_of = {tokenizer.to_bytes([i]): i for i in range(tokenizer.vocab_size)}
  euro = [byte_of[bytes([byte])] for byte in '€'.encode()]
  stream = detokenizer.Detokenizer(tokenizer)
  assert stream.push([byte_of[b'a'], euro[0]]) == 'a'
  assert stream.push(euro[1:2]) == ''
  assert stream.push([]) == ''
  assert stream.push(euro[2:]) == '€'
  assert stream.push(euro[:2]) == ''
  assert stream.flush() == '\ufffd'
  assert stream.flush() == ''
  assert stream.push([byte_of[b'b']]) == 'b'


@pytest.mark.parametrize('seed', range(20))
def test_any_ids_in_any_chunks_equal_decode(tokenizer, seed):
  rng = random.Random(seed)
  ids = [rng.randrange(tokenizer.vocab_size) for _ in range(300)]
  cuts = sorted(rng.randrange(300) for _ in range(40))
  chunks = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, 300], strict=True)]
  text = ''.join(_stream(tokenizer, chunks))
  assert text == tokenizer.decode(ids)
  assert text == tokenizer.backend.decode(ids, skip_special_tokens=False)


def test_unknown_id(tokenizer):
  stream = detokenizer.Detokenizer(tokenizer)
  for index in (-1, tokenizer.vocab_size):
    with pytest.raises(ValueError, match='do not all lie in a vocabulary'):
      stream.push([0, index])
