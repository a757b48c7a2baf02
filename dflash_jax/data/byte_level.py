"""Byte-level BPE: its alphabet, and how each family of models splits text."""

import dataclasses
import functools
from collections.abc import Mapping

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers


@dataclasses.dataclass(frozen=True)
class Scheme:
  """What a family does to text before the merges.

  Attributes:
    split: regular expression of the pieces that merges may not cross; None is
      the expression of GPT-2, applied to each stretch between the digits,
      which stand alone.
    nfc: whether text is brought into Unicode's composed form first.
    ignore_merges: whether a piece that is in the vocabulary is taken whole,
      even if no sequence of merges leads to it.
    add_bos: whether a plain text starts with the bos token where the model
      file does not say.
  """

  split: str | None
  nfc: bool = False
  ignore_merges: bool = False
  add_bos: bool = False


def _split(digits: str) -> str:
  return (
      r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits +
      r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
  )


# By the name that a GGUF file has under `tokenizer.ggml.pre`.
SCHEMES: Mapping[str, Scheme] = {
    'smollm': Scheme(split=None),
    'qwen2': Scheme(split=_split(r'\p{N}'), nfc=True),
    'llama-bpe': Scheme(
        split=_split(r'\p{N}{1,3}'), ignore_merges=True, add_bos=True
    ),
}


def backend(
    scheme: Scheme, vocab: Mapping[str, int], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a family with this vocabulary, specials aside.

  Raises:
    Exception: (as `tokenizers` does) a merge names a token that `vocab` lacks.
  """
  tokenizer = tokenizers.Tokenizer(
      models.BPE(
          vocab=dict(vocab), merges=merges, ignore_merges=scheme.ignore_merges
      )
  )
  if scheme.nfc:
    tokenizer.normalizer = normalizers.NFC()
  if scheme.split is None:
    steps = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
  else:
    steps = [
        pre_tokenizers.Split(tokenizers.Regex(scheme.split), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def to_bytes(token: str) -> bytes:
  """Returns the bytes that a token of a byte-level vocabulary stands for.

  A token with a character outside the alphabet is not written in it, and
  stands for its own UTF-8.
  """
  table = _alphabet()
  if all(character in table for character in token):
    return bytes(table[character] for character in token)
  return token.encode()


@functools.cache
def _alphabet() -> Mapping[str, int]:
  """The byte that each character stands for: GPT-2's printable alphabet.

  Printable bytes of Latin-1 stand for themselves; the others, in order, are
  the characters from 256 on.
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  hidden = [byte for byte in range(256) if byte not in printable]
  return {chr(byte): byte for byte in printable} | {
      chr(256 + index): byte for index, byte in enumerate(hidden)
  }
