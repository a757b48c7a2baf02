"""On-policy regeneration: a target answers prompts, into a corpus.

While it is unfinished, the corpus folder holds the batches done so far in
`responses.journal`.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dflash_jax.data import corpus
from dflash_jax.data import journal
from dflash_jax.data import origin as origin_lib

Prompt = tuple[str, Sequence[int]]
Generate = Callable[
    [list[Sequence[int]]], Sequence[tuple[Sequence[int], bool]]
]


def regenerate(
    prompts: Sequence[Prompt],
    generate: Generate,
    directory: str | os.PathLike,
    *,
    batch_size: int,
    manifest: Mapping[str, object],
    progress: Callable[[int, int], None] | None = None,
) -> dict:
  """Makes the corpus of `prompts` in `directory`, or ends one begun there.

  A batch is on the disk before the next begins, so that a killed run loses the
  batch in flight and nothing else; called again with the same arguments, it
  goes on from there, and returns at once when there is nothing left to do.
  Batches are composed from the prompts alone, so a `generate` that is
  deterministic for a batch gives the same dataset wherever it was killed.

  Args:
    prompts: (unique id, token ids) each.
    generate: maps the prompts of one batch to (response, finished) each.
    directory: the corpus folder; created.
    batch_size: prompts in a batch; the last batch may be smaller.
    manifest: JSON-serialisable facts that the responses depend on (target
      hash, template, sampling, ...). A corpus begun with others is refused.
    progress: called with (prompts done, all prompts), first when generation
      begins or goes on, then after each batch.

  Returns:
    The manifest of the corpus: `manifest`, what `origin.describe` adds to it
    and what `corpus.write` adds to that.

  Raises:
    errors.UserError: no prompts, an empty prompt, an id used twice, a corpus
      begun from something else, another process at work in `directory`, a
      damaged journal, a full disk or an unwritable folder.
  """
  directory = pathlib.Path(directory)
  path = directory / 'responses.journal'
  origin = origin_lib.describe(prompts, batch_size, manifest)
  made = corpus.read_manifest(directory)
  if made is None:
    with journal.exclusive(directory):
      # Whoever held the folder until now may have ended the work.
      made = corpus.read_manifest(directory)
      if made is None:
        _remove_leftovers(directory)
        with journal.Journal(path, origin) as log:
          origin_lib.check_same(path, log.header, origin)
          _generate_rest(log, prompts, generate, batch_size, progress)
        examples = list(_examples(prompts, log.records))
        made = corpus.write(directory, examples, origin)
  begun = {k: v for k, v in made.items() if k not in corpus.SUMMARY}
  origin_lib.check_same(directory / 'manifest.json', begun, origin)
  # It may be there even now (killed after the manifest was written), and where
  # the folder is read-only it does no harm.
  with contextlib.suppress(OSError):
    path.unlink()
  return made


def _remove_leftovers(directory: pathlib.Path) -> None:
  """Removes the temporary files that a killed process could not remove."""
  for name in ('dataset', 'manifest.json', 'responses.journal'):
    for path in directory.glob(f'.{name}.*'):
      if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
      else:
        path.unlink(missing_ok=True)


def _batches(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
  """The indices of the prompts of each batch.

  Like lengths go together, which keeps padding small; the longest go first, so
  that a batch too large for the memory fails at once.
  """
  order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i][1]))
  return [order[i : i + size] for i in range(0, len(order), size)]


def _generate_rest(
    log: journal.Journal,
    prompts: Sequence[Prompt],
    generate: Generate,
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> None:
  """Appends to `log` a record for each batch that it does not hold yet."""
  batches = _batches(prompts, batch_size)
  start = len(log.records)
  done = sum(map(len, batches[:start]))
  if progress is not None:
    progress(done, len(prompts))
  for batch in batches[start:]:
    results = generate([prompts[i][1] for i in batch])
    if len(results) != len(batch):
      raise ValueError(
          f'generate gave {len(results)} responses to {len(batch)} prompts'
      )
    log.append({
        'ids': [prompts[i][0] for i in batch],
        'responses': [
            np.asarray(response, np.int32).tolist() for response, _ in results
        ],
        'finished': [bool(finished) for _, finished in results],
    })
    done += len(batch)
    if progress is not None:
      progress(done, len(prompts))


def _examples(
    prompts: Sequence[Prompt], records: Sequence[Mapping]
) -> Iterator[corpus.Example]:
  """The examples of a complete journal, in the order of the prompts."""
  responses = {}
  for record in records:
    results = zip(record['responses'], record['finished'], strict=True)
    responses.update(zip(record['ids'], results, strict=True))
  for name, prompt in prompts:
    response, finished = responses[name]
    yield corpus.Example(
        id=name,
        prompt=np.asarray(prompt, np.int32),
        response=np.asarray(response, np.int32),
        finished=finished,
    )
