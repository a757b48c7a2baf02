"""What a corpus is made from, and whether two of those are the same."""

import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dflash_jax import errors

FORMAT_VERSION = 1


def describe(
    prompts: Sequence[tuple[str, Sequence[int]]],
    batch_size: int,
    facts: Mapping[str, object],
) -> dict:
  """All that the responses depend on, as plain JSON values.

  Returns:
    `facts`, `format_version`, `batch_size`, `num_examples` and
    `prompt_tokens_sha256`, over the ids and tokens of `prompts` in order.

  Raises:
    errors.UserError: no prompts, an empty prompt, or an id used twice.
  """
  if not prompts:
    raise errors.UserError(
        'there are no prompts to regenerate; check the prompt source'
    )
  digest, seen = hashlib.sha256(), set()
  for name, tokens in prompts:
    if len(tokens) == 0:
      raise errors.UserError(f'prompt {name!r} is empty; remove it')
    if name in seen:
      raise errors.UserError(f'prompt id {name!r} is used twice; rename one')
    seen.add(name)
    digest.update(json.dumps([name, np.asarray(tokens).tolist()]).encode())
  origin = {
      **facts,
      'format_version': FORMAT_VERSION,
      'batch_size': batch_size,
      'num_examples': len(prompts),
      'prompt_tokens_sha256': digest.hexdigest(),
  }
  # Through JSON, so that it compares equal to what is read back from a file.
  return json.loads(json.dumps(origin))


def check_same(path: pathlib.Path, old: Mapping, new: Mapping) -> None:
  """Refuses to go on with the corpus of `path`, made from `old`, with `new`.

  Raises:
    errors.UserError: they differ; names each differing field and both values.
  """
  changes = list(_changes(old, new))
  if changes:
    raise errors.UserError(
        f'{path} was made with other settings: {"; ".join(changes)}. Restore'
        f' them, choose another workdir, or delete {path.parent}'
    )


def _changes(old: Mapping, new: Mapping, prefix: str = '') -> Iterator[str]:
  for key in {**new, **old}:
    before, now = old.get(key), new.get(key)
    if isinstance(before, dict) and isinstance(now, dict):
      yield from _changes(before, now, f'{prefix}{key}.')
    elif before != now:
      yield (
          f'{prefix}{key} was {json.dumps(before)}, is now {json.dumps(now)}'
      )
