"""Training checkpoints: whole state, atomic, the newest two kept."""

import os
import pathlib
from typing import TypeVar

import jax
from orbax.checkpoint import v1 as ocp

from dflash_jax import errors
from dflash_jax import files

_State = TypeVar('_State')


class Checkpoints:
  """A folder of numbered checkpoints of one pytree.

  A checkpoint appears under its number by a rename once it is complete, so a
  run that is killed while saving resumes from the one before.
  """

  def __init__(self, directory: str | os.PathLike):
    self._directory = pathlib.Path(directory).absolute()
    try:
      self._directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise files.unwritable(self._directory, error) from error
    self._checkpointer = ocp.training.Checkpointer(
        self._directory,
        preservation_policy=ocp.training.preservation_policies.LatestN(2),
    )

  def latest_step(self) -> int | None:
    """Number of the newest complete checkpoint, or None."""
    latest = self._checkpointer.latest
    return None if latest is None else latest.step

  def save(self, step: int, state: jax.Array | _State) -> None:
    """Saves `state` as number `step`; returns when it is on disk."""
    try:
      self._checkpointer.save(step, state, force=True)
    except OSError as error:
      raise files.unwritable(self._directory, error) from error

  def restore(self, step: int, like: _State) -> _State:
    """Loads number `step`.

    Args:
      step: as returned by `latest_step`.
      like: a state of the same structure; shapes, dtypes and placement are
        taken from it.

    Raises:
      errors.UserError: the checkpoint does not fit `like`, or is damaged.
    """
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf.sharding
        ),
        like,
    )
    try:
      return self._checkpointer.load(step, abstract)
    except Exception as error:  # Orbax raises many kinds for a bad folder.
      raise errors.UserError(
          f'{self._directory / str(step)}: the checkpoint does not fit this'
          f' run or is damaged ({type(error).__name__}: {error}); use another'
          ' --workdir, or delete that folder to go on from the one before'
      ) from error

  def close(self) -> None:
    self._checkpointer.close()
