"""Tests of how text is cut into pieces and bytes."""

import pytest
from tokenizers import pre_tokenizers

from dflash_jax.data import byte_level


def _pieces(family, text):
  backend = byte_level.backend(byte_level.SCHEMES[family], {}, [])
  pieces = backend.pre_tokenizer.pre_tokenize_str(text)
  return [byte_level.to_bytes(piece).decode() for piece, _ in pieces]


@pytest.mark.parametrize('family, text, pieces', [
    ('smollm', "it's 2024", ['it', "'s", ' ', '2', '0', '2', '4']),
    ('smollm', 'x\n    12', ['x', '\n    ', '1', '2']),
    ('smollm', 'IT\'S a  b', ['IT', "'", 'S', ' a', ' ', ' b']),
    ('qwen2', 'a 2024', ['a', ' ', '2', '0', '2', '4']),
    ('qwen2', "IT'S\n\n x!!\n", ['IT', "'S", '\n\n', ' x', '!!\n']),
    ('qwen2', '(word', ['(word']),
    ('llama-bpe', 'a 12345', ['a', ' ', '123', '45']),
    ('llama-bpe', "I'Ll  go", ['I', "'Ll", ' ', ' go']),
])
def test_pieces(family, text, pieces):
  assert _pieces(family, text) == pieces


def test_only_qwen_composes():
  for family, scheme in byte_level.SCHEMES.items():
    backend = byte_level.backend(scheme, {}, [])
    assert (backend.normalizer is not None) == (family == 'qwen2')
  backend = byte_level.backend(byte_level.SCHEMES['qwen2'], {}, [])
  assert backend.normalizer.normalize_str('e\u0301') == '\u00e9'


def test_pieces_in_the_vocabulary_are_taken_whole_by_llama():
  vocab = {'a': 0, 'b': 1, 'c': 2, 'bc': 3, 'abc': 4}
  for family, ids in (('llama-bpe', [4]), ('smollm', [0, 3])):
    backend = byte_level.backend(
        byte_level.SCHEMES[family], vocab, [('b', 'c')]
    )
    assert backend.encode('abc').ids == ids


def test_alphabet_is_that_of_the_library():
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  assert sorted(byte_level.to_bytes(c) for c in alphabet) == [
      bytes([byte]) for byte in range(256)
  ]
  splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  for text in map(chr, [*range(0x250), 0x20ac, 0x1f600]):
    ((piece, _),) = splitter.pre_tokenize_str(text)
    assert byte_level.to_bytes(piece) == text.encode()


def test_tokens_outside_the_alphabet_are_their_own_text():
  assert byte_level.to_bytes('<｜end▁of▁text｜>') == '<｜end▁of▁text｜>'.encode()
