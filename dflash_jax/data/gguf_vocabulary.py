"""Vocabularies in the metadata of GGUF files."""

from collections.abc import Mapping
from typing import Any

import tokenizers

from dflash_jax import errors
from dflash_jax.data import byte_level

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

# End-of-turn tokens of the families read here. Files name one stop token, but
# a chat may end with one and a document with another.
_STOPS = (
    '<|im_end|>', '<|endoftext|>', '<|eot_id|>', '<|eom_id|>', '<|end_of_text|>'
)


def read(metadata: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arguments of `tokenizer.Tokenizer` for a byte-level vocabulary.

  Args:
    metadata: GGUF key to Python value (lists for arrays).

  Raises:
    errors.UserError: a key is missing, contradicts another, or names a kind of
      vocabulary that is not supported.
  """
  model = _require(metadata, 'model')
  if model != 'gpt2':
    raise errors.UserError(
        f'tokenizer.ggml.model is {model!r}; only byte-level BPE (gpt2) is read'
    )
  family = _require(metadata, 'pre')
  if family not in byte_level.SCHEMES:
    raise errors.UserError(
        f'tokenizer.ggml.pre is {family!r}; choose a model with one of'
        f' {", ".join(byte_level.SCHEMES)}, or add a row to byte_level.SCHEMES'
    )
  scheme = byte_level.SCHEMES[family]
  tokens = _require(metadata, 'tokens')
  kinds = _require(metadata, 'token_type')
  if len(kinds) != len(tokens):
    raise errors.UserError(
        f'tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)}'
        ' tokens; the file is damaged, download it again'
    )
  special = {
      token: index for index, token in enumerate(tokens)
      if kinds[index] == _CONTROL
  }
  ids = {
      name: _token_id(metadata, name, len(tokens))
      for name in ('bos', 'eos', 'eot', 'eom', 'unknown', 'padding')
  }
  if ids['eos'] is None:
    raise errors.UserError(
        'tokenizer.ggml.eos_token_id is missing, so nothing would end an'
        ' answer; write it into the file'
    )
  stops = [ids['eos'], ids['eot'], ids['eom'], *map(special.get, _STOPS)]
  return {
      'backend': _backend(metadata, scheme, tokens, kinds),
      'special_tokens': special,
      'unused_ids': tuple(i for i, kind in enumerate(kinds) if kind == _UNUSED),
      'bos_id': ids['bos'],
      'eos_ids': tuple(dict.fromkeys(i for i in stops if i is not None)),
      'pad_id': ids['eos'] if ids['padding'] is None else ids['padding'],
      'unk_id': ids['unknown'],
      'add_bos': ids['bos'] is not None and bool(
          metadata.get('tokenizer.ggml.add_bos_token', scheme.add_bos)
      ),
      'chat_template': metadata.get('tokenizer.chat_template'),
  }


def _backend(
    metadata: Mapping[str, Any],
    scheme: byte_level.Scheme,
    tokens: list[str],
    kinds: list[int],
) -> tokenizers.Tokenizer:
  vocab = {token: index for index, token in enumerate(tokens)}
  if len(vocab) != len(tokens):
    twice = next(t for i, t in enumerate(tokens) if vocab[t] != i)
    raise errors.UserError(
        f'tokenizer.ggml.tokens has {twice!r} twice; the file is damaged,'
        ' download it again'
    )
  merges = [tuple(m.split(' ')) for m in _require(metadata, 'merges')]
  for merge in merges:
    if len(merge) != 2 or ''.join(merge) not in vocab or any(
        part not in vocab for part in merge
    ):
      raise errors.UserError(
          f'tokenizer.ggml.merges has {" ".join(merge)!r}, which is not a pair'
          ' of tokens that make a token; the file is damaged, download it again'
      )
  backend = byte_level.backend(scheme, vocab, merges)
  for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
    backend.add_tokens([
        tokenizers.AddedToken(token, normalized=False, special=special)
        for token, k in zip(tokens, kinds, strict=True) if k == kind
    ])
  return backend


def _require(metadata: Mapping[str, Any], name: str) -> Any:
  key = f'tokenizer.ggml.{name}'
  if key not in metadata:
    raise errors.UserError(
        f'the model file has no {key}; use a GGUF file with its tokenizer in it'
    )
  return metadata[key]


def _token_id(
    metadata: Mapping[str, Any], name: str, num_tokens: int
) -> int | None:
  key = f'tokenizer.ggml.{name}_token_id'
  if key not in metadata:
    return None
  index = int(metadata[key])
  if not 0 <= index < num_tokens:
    raise errors.UserError(
        f'{key} is {index}, but the vocabulary has {num_tokens} tokens; the'
        ' file is damaged, download it again'
    )
  return index
