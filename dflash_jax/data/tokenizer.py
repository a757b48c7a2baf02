"""Text to token ids and back, chat templates included."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.data import byte_level
from dflash_jax.data import chat_template as chat_template_lib
from dflash_jax.data import gguf_vocabulary
from dflash_jax.data import hf_tokenizer
from dflash_jax.data import prompts


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
  """A byte-level BPE vocabulary with its special tokens and chat template.

  Attributes:
    backend: splits and merges.
    special_tokens: control tokens and their ids.
    unused_ids: rows that only fill the vocabulary up.
    bos_id: the token that starts a text, if there is one.
    eos_ids: stop tokens; the first is the one that the model file names.
    pad_id: fills the unused end of a row; never read as a token.
    unk_id: the unknown token, if there is one. It is never produced: bytes
      that the vocabulary lacks are dropped, as the original tokenizers do.
    add_bos: whether `encode` with `add_special` starts with `bos_id`.
    chat_template: jinja2 source, if there is one.
  """

  backend: tokenizers.Tokenizer
  special_tokens: dict[str, int]
  unused_ids: tuple[int, ...]
  bos_id: int | None
  eos_ids: tuple[int, ...]
  pad_id: int
  unk_id: int | None
  add_bos: bool
  chat_template: str | None

  @classmethod
  def from_gguf(cls, metadata: Mapping[str, Any]) -> 'Tokenizer':
    """Builds the tokenizer that GGUF metadata describe; see the reader."""
    return cls(**gguf_vocabulary.read(metadata))

  @classmethod
  def from_huggingface(
      cls,
      directory: str | os.PathLike,
      vocab_size: int,
      eos_ids: Sequence[int],
  ) -> 'Tokenizer':
    """Reads the tokenizer in a model's folder; see `hf_tokenizer.read`."""
    return cls(**hf_tokenizer.read(directory, vocab_size, eos_ids))

  @classmethod
  def load(cls, path: str | os.PathLike) -> 'Tokenizer':
    """Reads what `save` wrote; `errors.UserError` for anything else."""
    try:
      fields = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
      backend = tokenizers.Tokenizer.from_str(json.dumps(fields.pop('backend')))
      for name in ('eos_ids', 'unused_ids'):
        fields[name] = tuple(fields[name])
      return cls(backend, **fields)
    except OSError as error:
      raise errors.UserError(
          f'cannot read the tokenizer {path}: {error.strerror}; check the path'
      ) from error
    except Exception as error:  # `tokenizers` raises bare Exception.
      raise errors.UserError(
          f'{path} is not a tokenizer saved by this library'
          f' ({type(error).__name__}: {error}); save it again'
      ) from error

  def save(self, path: str | os.PathLike) -> None:
    """Writes everything to one JSON file; `load` reads it."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    fields['backend'] = json.loads(self.backend.to_str())
    files.atomic_write(path, json.dumps(fields, ensure_ascii=False))

  @property
  def vocab_size(self) -> int:
    """Number of tokens, control tokens included."""
    return self.backend.get_vocab_size()

  @functools.cached_property
  def _bytes(self) -> list[bytes]:
    """The bytes of each token, by id."""
    # Rows that only fill the vocabulary up have no bytes.
    size = max(self.vocab_size, 1 + max(self.unused_ids, default=0))
    table = [b''] * size
    for token, index in self.backend.get_vocab().items():
      table[index] = byte_level.to_bytes(token)
    for index, added in self.backend.get_added_tokens_decoder().items():
      table[index] = added.content.encode()
    return table

  def to_bytes(self, ids: Iterable[int]) -> bytes:
    """Returns the joined bytes of tokens; `ValueError` for an unknown id."""
    ids = [int(index) for index in ids]
    if ids and not 0 <= min(ids) <= max(ids) < len(self._bytes):
      raise ValueError(
          f'token ids from {min(ids)} to {max(ids)} do not all lie in a'
          f' vocabulary of {len(self._bytes)}'
      )
    return b''.join(self._bytes[index] for index in ids)

  def encode(self, text: str, add_special: bool = False) -> list[int]:
    """Returns the token ids of `text`; special tokens in it are recognised.

    Args:
      text: any text.
      add_special: whether to start with the bos token, if the model wants it.

    Raises:
      errors.UserError: the text holds half of a surrogate pair.
    """
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise errors.UserError(
          f'the text cannot be written as UTF-8 ({error}); check the encoding'
          ' of its source'
      ) from error
    ids = self.backend.encode(text, add_special_tokens=False).ids
    return [self.bos_id, *ids] if add_special and self.add_bos else ids

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of tokens; bytes that are not UTF-8 become U+FFFD."""
    return self.to_bytes(ids).decode(errors='replace')

  def render(
      self,
      messages: Sequence[Mapping[str, str]],
      add_generation_prompt: bool = True,
      **switches: Any,
  ) -> str:
    """Returns the text of a chat, by the model's template.

    Args:
      messages: each with `role` and `content`.
      add_generation_prompt: whether to open the assistant's turn at the end.
      **switches: the template's own, such as `enable_thinking`.

    Raises:
      errors.UserError: there is no template, or it fails on these messages.
    """
    if self.chat_template is None:
      raise errors.UserError(
          'the model has no chat template; use plain text prompts (a .txt file,'
          ' or "text" in a .jsonl file)'
      )
    named = {
        'bos_token': self.bos_id, 'eos_token': self.eos_ids[0],
        'pad_token': self.pad_id, 'unk_token': self.unk_id,
    }
    variables = {
        name: self.backend.id_to_token(index)
        for name, index in named.items() if index is not None
    }
    # Templates tell "no tools" from "undefined" with `is not none`.
    variables |= {'tools': None, 'documents': None, **switches}
    variables['add_generation_prompt'] = add_generation_prompt
    return chat_template_lib.render(self.chat_template, messages, **variables)

  def encode_prompt(
      self, prompt: prompts.Prompt, **switches: Any
  ) -> list[int]:
    """Returns the token ids of a prompt: its chat rendered, or its text.

    Args:
      prompt: a chat or a text.
      **switches: the chat template's own.

    Raises:
      errors.UserError: it cannot be rendered, or no token is left of it.
    """
    if prompt.text is not None:
      ids = self.encode(prompt.text, add_special=True)
    else:
      ids = self.encode(self.render(prompt.messages, **switches))
    if not ids:
      raise errors.UserError(
          f'prompt {prompt.id!r} has only bytes that the vocabulary lacks'
      )
    return ids


def unused_special_token(tokenizer: Tokenizer) -> int:
  """Returns the id that serves a drafter as its mask token.

  It is the last control token that the chat template does not name and that is
  not the bos, a stop, the pad or the unknown token; without one, the first row
  that only fills the vocabulary up. `errors.UserError` if there is neither.
  """
  used = {
      tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id, *tokenizer.eos_ids
  }
  free = [
      index for token, index in tokenizer.special_tokens.items()
      if index not in used and token not in (tokenizer.chat_template or '')
  ]
  if not free and not tokenizer.unused_ids:
    raise errors.UserError(
        'every control token of the vocabulary has a use, so none is left for'
        ' the mask token of a drafter; name a rare token in the drafter config'
    )
  return max(free) if free else min(tokenizer.unused_ids)
