"""Kills regeneration everywhere and resumes it; run by `regenerate_test`.

    python kill_regenerate.py EMPTY_FOLDER

prints one JSON object: how many runs were killed, and what went wrong. It is a
process of its own, so that it can fork (threads of JAX forbid that in pytest):
each run takes milliseconds, not the second that its imports take.
"""

import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time

import numpy as np
import tensorflow_datasets as tfds

from dflash_jax.data import corpus
from dflash_jax.data import regenerate

PROMPTS = [(f'p{i}', list(range(1 + 7 * i % 5))) for i in range(10)]
BATCH_SIZE = 3
NUM_BATCHES = 4


def answer(prompts):
  """Deterministic for a batch, and different if its composition changes."""
  rng = np.random.default_rng([len(p) for p in prompts])
  lengths = rng.integers(0, 60, len(prompts))
  return [(rng.integers(0, 50_000, n).tolist(), n % 2 == 0) for n in lengths]


def run(folder, seconds_per_batch=0.0):
  """One whole run; counts its calls of the model beside `folder`."""

  def generate(prompts):
    with open(f'{folder}.calls', 'a', encoding='utf8') as calls:
      calls.write('x')
    time.sleep(seconds_per_batch)
    return answer(prompts)

  corpus.EXAMPLES_PER_SHARD = 4
  regenerate.regenerate(
      PROMPTS, generate, folder, batch_size=BATCH_SIZE, manifest={'target': 't'}
  )


def fork(job):
  """Runs `job` in a child; returns its process id."""
  child = os.fork()
  if child == 0:
    try:
      job()
      os._exit(0)
    finally:
      os._exit(1)
  return child


def wait(child):
  """The exit status, or minus the number of the signal that killed it."""
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_self_at(event):
  """Makes this process die at its `event`th act that matters to the disk."""
  events = itertools.count(1)

  def die_in(owner, name):
    act = getattr(owner, name)

    def wrapped(*args, **kwargs):
      if next(events) == event:
        if act is os.write:
          descriptor, data = args
          act(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
      return act(*args, **kwargs)

    setattr(owner, name, wrapped)

  for name in ('write', 'fsync', 'ftruncate', 'replace', 'unlink', 'mkdir'):
    die_in(os, name)
  for name in ('initialize_splits', 'add_examples', 'close_splits'):
    die_in(tfds.core.SequentialWriter, name)
  die_in(sys.modules[__name__], 'answer')


def contents(folder):
  """All files by relative path, without the time of creation."""
  found = {
      str(path.relative_to(folder)): path.read_bytes()
      for path in pathlib.Path(folder).rglob('*')
      if path.is_file()
  }
  manifest = json.loads(found.pop('manifest.json', b'{}'))
  manifest.pop('created', None)
  return found, manifest


def main(root):
  """Kills at each event, then at each event again and again, then by clock."""
  failures = []
  reference = root / 'reference'
  assert wait(fork(lambda: run(reference))) == 0
  expected = contents(reference)

  def check(label, folder, kills):
    status = wait(fork(lambda: run(folder)))
    calls = len(pathlib.Path(f'{folder}.calls').read_text('utf8'))
    if status or contents(folder) != expected:
      names = sorted(contents(folder)[0])
      failures.append(f'{label}: status {status}, {names}')
    if not NUM_BATCHES <= calls <= NUM_BATCHES + kills:
      failures.append(f'{label}: {calls} calls of the model')
    shutil.rmtree(folder)

  num_kills = 0
  for event in itertools.count(1):
    folder = root / f'event{event}'
    status = wait(fork(lambda: (kill_self_at(event), run(folder))))
    if status == 0:
      break
    assert status == -signal.SIGKILL, status
    num_kills += 1
    check(f'event {event}', folder, 1)

  # Half a batch further each time: late enough to get on, too early to end.
  for event in (7, 8, 9):
    folder = root / f'again{event}'
    for _ in range(6):
      status = wait(fork(lambda: (kill_self_at(event), run(folder))))
      num_kills += status == -signal.SIGKILL
    check(f'again {event}', folder, 6)

  clock = random.Random(0)
  for trial in range(8):
    folder = root / f'clock{trial}'
    for _ in range(3):
      child = fork(lambda: run(folder, 0.005))
      time.sleep(clock.uniform(0.0, 0.05))
      os.kill(child, signal.SIGKILL)
      num_kills += wait(child) == -signal.SIGKILL
    check(f'clock {trial}', folder, 3)

  print(json.dumps({'kills': num_kills, 'failures': failures}))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
