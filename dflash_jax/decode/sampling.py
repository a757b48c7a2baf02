"""What a request that samples asks for."""

from collections.abc import Sequence
import dataclasses
import math

import jax
import jax.numpy as jnp

from dflash_jax import errors
from dflash_jax.decode import state as states
from dflash_jax.verifier import law as laws
from dflash_jax.verifier import noise as noises


@dataclasses.dataclass(frozen=True)
class Sampling:
  """What a request asks for; see `verifier.law.Law` for the settings.

  Attributes:
    seed: of its random numbers.
    request: which of the requests with this seed it is.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  seed: int = 0
  request: int = 0

  def __post_init__(self):
    for field, fine, need in (
        ('temperature', 0 <= self.temperature < math.inf, 'be at least 0'),
        ('top_k', self.top_k >= 0, 'be at least 0, which keeps all'),
        ('top_p', 0 < self.top_p <= 1, 'be above 0 and at most 1'),
        ('min_p', 0 <= self.min_p <= 1, 'be 0 to 1'),
        ('repetition_penalty', self.repetition_penalty > 0, 'be above 0'),
        ('seed', 0 <= self.seed < 2**31, 'be 0 to 2147483647'),
    ):
      if not fine:
        raise errors.UserError(
            f'{field} is {getattr(self, field)}; it must {need}'
        )

  @property
  def has_penalties(self) -> bool:
    """Whether it needs counts of the tokens so far."""
    return (
        self.repetition_penalty != 1
        or self.presence_penalty != 0
        or self.frequency_penalty != 0
    )


def requests(sampling: Sequence[Sampling]) -> states.Requests:
  """A batch of them, row by row."""

  def column(name: str, dtype: jnp.dtype) -> jax.Array:
    return jnp.asarray([getattr(s, name) for s in sampling], dtype)

  settings = {
      field.name: column(
          field.name, jnp.int32 if field.name == 'top_k' else jnp.float32
      )
      for field in dataclasses.fields(laws.Law)
  }
  keys = noises.row_keys(
      column('seed', jnp.int32), column('request', jnp.int32)
  )
  return states.Requests(laws.Law(**settings), keys)
