"""The training loop: exact resume, metrics, evaluation, a progress bar."""

from collections.abc import Callable, Mapping
import json
import os
import pathlib
import time
from typing import Any, Protocol

import jax
import numpy as np
import tqdm

from dflash_jax import errors
from dflash_jax import files


class Checkpoints(Protocol):
  """Where states are kept; see `checkpoint.orbax.Checkpoints`."""

  def latest_step(self) -> int | None: ...

  def save(self, step: int, state: Any) -> None: ...

  def restore(self, step: int, like: Any) -> Any: ...


class MetricsLog:
  """A JSONL file of metrics, one row a call, each with its `step`."""

  def __init__(self, path: str | os.PathLike):
    self.path = pathlib.Path(path)

  def rewind(self, step: int) -> None:
    """Drops rows after `step`, which a resumed run will write again."""
    kept = [row for row in self.rows() if row['step'] <= step]
    files.atomic_write(
        self.path, ''.join(json.dumps(row) + '\n' for row in kept)
    )

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Appends one row; arrays become lists."""
    row = {'step': step} | {
        name: np.asarray(value).tolist() for name, value in metrics.items()
    }
    try:
      with self.path.open('a') as file:
        file.write(json.dumps(row) + '\n')
    except OSError as error:
      raise files.unwritable(self.path, error) from error

  def rows(self) -> list[dict[str, Any]]:
    """All whole rows; a row that a kill cut short is left out."""
    if not self.path.exists():
      return []
    rows = []
    for line in self.path.read_text().splitlines():
      try:
        rows.append(json.loads(line))
      except json.JSONDecodeError:
        break
    return rows


def run(
    step_function: Callable[[Any, Any, jax.Array], tuple[Any, dict[str, Any]]],
    state: Any,
    make_batch: Callable[[int], Any],
    *,
    num_steps: int,
    seed: int,
    checkpoints: Checkpoints,
    save_every: int,
    log: MetricsLog,
    log_every: int,
    evaluate: Callable[[Any], Mapping[str, Any]] | None,
    eval_every: int,
    label: str,
) -> Any:
  """Trains until `num_steps`, from the newest checkpoint if there is one.

  Batch and randomness of a step depend on `seed` and the step's number alone,
  so a run that was killed goes on exactly as if it had not been.

  Args:
    step_function: `(state, batch, key) -> (state, metrics)`, jitted, metrics
      with a `loss`.
    state: at step 0; has a `step` leaf.
    make_batch: batch of a step.
    num_steps: steps in all.
    seed: of the keys.
    checkpoints: where to resume from and save to.
    save_every: steps between checkpoints; the last step is always saved.
    log: receives training and evaluation rows.
    log_every: steps between training rows.
    evaluate: called with the state; its metrics are logged as `eval/...`.
    eval_every: steps between evaluations; the last step has one.
    label: of the progress bar.

  Returns:
    The state after the last step.

  Raises:
    errors.UserError: the loss is not finite; names the step, and the file to
      which its batch was written.
  """
  latest = checkpoints.latest_step()
  if latest is not None:
    state = checkpoints.restore(latest, state)
  start = int(state.step)
  log.rewind(start)
  root = jax.random.key(seed)
  began = time.perf_counter()
  with tqdm.tqdm(total=num_steps, initial=start, desc=label, unit='step') as bar:
    for step in range(start + 1, num_steps + 1):
      batch = make_batch(step - 1)
      state, metrics = step_function(
          state, batch, jax.random.fold_in(root, step)
      )
      loss = float(metrics['loss'])
      if not np.isfinite(loss):
        raise _not_finite(log, step, loss, batch)
      bar.update()
      last = step == num_steps
      if step % log_every == 0 or last:
        seconds = (time.perf_counter() - began) / (step - start)
        log.write(step, {**metrics, 'seconds_per_step': seconds})
        bar.set_postfix(loss=f'{loss:.3f}')
      if evaluate is not None and (step % eval_every == 0 or last):
        scores = evaluate(state)
        log.write(step, {f'eval/{k}': v for k, v in scores.items()})
        bar.write(f'step {step}: ' + ', '.join(
            f'{name} ' + ('-' if value is None else f'{value:.3f}')
            for name, value in scores.items()
        ))
      if step % save_every == 0 or last:
        checkpoints.save(step, state)
  return state


def _not_finite(log, step, loss, batch):
  path = log.path.with_name(f'bad_batch_{step}.npz')
  arrays = jax.tree.leaves_with_path(batch)
  np.savez(path, **{jax.tree_util.keystr(k): np.asarray(v) for k, v in arrays})
  return errors.UserError(
      f'the loss is {loss} at step {step}; its batch is in {path}; lower the'
      ' learning rate, or look for broken rows in that file'
  )
