"""Tokenizers in Hugging Face folders."""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
from typing import Any

import tokenizers

from dflash_jax import errors


def read(
    directory: str | os.PathLike, vocab_size: int, eos_ids: Sequence[int]
) -> dict[str, Any]:
  """Returns the arguments of `tokenizer.Tokenizer`.

  Args:
    directory: folder with `tokenizer.json`, and `tokenizer_config.json` with
      the special tokens and the chat template (which newer models have in
      `chat_template.jinja`).
    vocab_size: rows of the model's embedding; those above the last token only
      fill it up.
    eos_ids: the model's stop tokens.

  Raises:
    errors.UserError: a file is missing or damaged; a special token is not in
      the vocabulary; the vocabulary is not byte-level.
  """
  directory = pathlib.Path(directory)
  path = directory / 'tokenizer.json'
  try:
    backend = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # `tokenizers` raises bare Exception.
    raise errors.UserError(
        f'{path}: cannot be read ({error}); give the folder of a model with'
        ' its tokenizer.json'
    ) from error
  if 'ByteLevel' not in json.dumps(json.loads(backend.to_str())['decoder']):
    raise errors.UserError(
        f'{path}: not a byte-level vocabulary; other kinds are not supported'
    )
  path = directory / 'tokenizer_config.json'
  try:
    config = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise errors.UserError(
        f'{path}: cannot be read ({error}); fetch it again'
    ) from error
  ids = {
      name: _token_id(path, config, backend, name)
      for name in ('bos_token', 'eos_token', 'pad_token', 'unk_token')
  }
  stops = [ids['eos_token'], *eos_ids]
  size = backend.get_vocab_size()
  if size > vocab_size or max(eos_ids) >= vocab_size:
    raise errors.UserError(
        f'{directory}: the tokenizer has {size} tokens and the stop tokens are'
        f' {list(eos_ids)}, but the model has {vocab_size} rows; they belong to'
        ' different models'
    )
  started = backend.encode('a').ids[:1]
  return {
      'backend': backend,
      'special_tokens': {
          token.content: index
          for index, token in backend.get_added_tokens_decoder().items()
          if token.special
      },
      'unused_ids': tuple(range(size, vocab_size)),
      'bos_id': ids['bos_token'],
      'eos_ids': tuple(dict.fromkeys(i for i in stops if i is not None)),
      'pad_id': eos_ids[0] if ids['pad_token'] is None else ids['pad_token'],
      'unk_id': ids['unk_token'],
      'add_bos': ids['bos_token'] is not None and started == [ids['bos_token']],
      'chat_template': _chat_template(directory, path, config),
  }


def _token_id(
    path: pathlib.Path,
    config: Mapping[str, Any],
    backend: tokenizers.Tokenizer,
    name: str,
) -> int | None:
  token = config.get(name)
  if isinstance(token, dict):
    token = token.get('content')
  if token is None:
    return None
  index = backend.token_to_id(token)
  if index is None:
    raise errors.UserError(
        f'{path}: {name} is {token!r}, which tokenizer.json does not have; the'
        ' two belong to different models'
    )
  return index


def _chat_template(
    directory: pathlib.Path, path: pathlib.Path, config: Mapping[str, Any]
) -> str | None:
  """The file of its own wins; of several named templates, `default`."""
  own = directory / 'chat_template.jinja'
  if own.exists():
    return own.read_text(encoding='utf-8')
  template = config.get('chat_template')
  if isinstance(template, list):
    named = {entry['name']: entry['template'] for entry in template}
    if 'default' not in named:
      raise errors.UserError(
          f'{path}: chat_template has {sorted(named)}, and no default; keep the'
          ' one to use, as a string'
      )
    template = named['default']
  return template
