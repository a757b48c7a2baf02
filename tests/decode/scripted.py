"""An engine whose drafter is as right as the test wants it to be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax.decode import engine
from dflash_jax.decode import state
from dflash_jax.verifier import proposal as proposals
from tests import tiny
from tests.decode import truth

BLOCK = tiny.DRAFTER.block_size


class ScriptedEngine(engine.Engine):
  """Drafts the target's own tokens, with a wrong one where the plan says.

  The real drafter still runs and fills its cache. `params.drafter` holds its
  parameters as `model`; as `truth`, the tokens of each row by position; and as
  `plan`, how many drafts are right in each round of each row.
  """

  def prefill(self, params, *arguments, **keywords):
    return super().prefill(_real(params), *arguments, **keywords)

  def _draft(self, params, state):
    block, _, cache = super()._draft(_real(params), state)
    slots = jnp.arange(BLOCK - 1)[None]
    right = jnp.take_along_axis(
        params.drafter['truth'], state.length[:, None] + slots, axis=1
    )
    planned = jnp.take_along_axis(
        params.drafter['plan'], state.num_rounds[:, None], axis=1
    )
    # Right again after the wrong slot: a loose prefix rule would accept that.
    drafts = jnp.where(slots == planned, (right + 1) % tiny.MASK, right)
    block = jnp.concatenate([block[:, :1], drafts], axis=1)
    return block, proposals.one_hot(drafts), cache


def _real(params):
  return params.replace(drafter=params.drafter['model'])


@functools.cache
def make():
  target, _ = tiny.target()
  drafter, _ = tiny.drafter()
  return ScriptedEngine(target, drafter, BLOCK, truth.STOP_IDS)


def params(plan, rows=range(len(truth.PROMPTS))):
  """Parameters for prompts `rows`; `plan` is `[B, rounds]` or one for all."""
  table = np.zeros((len(rows), 64), np.int32)
  for line, row in zip(table, rows):
    tokens = truth.PROMPTS[row] + truth.continuations()[row]
    line[: len(tokens)] = tokens
  plan = np.broadcast_to(plan, (len(rows), np.shape(plan)[-1]))
  return state.Params(
      tiny.target()[1],
      jax.tree.map(jnp.asarray, {
          'model': tiny.drafter()[1],
          'truth': table,
          'plan': np.asarray(plan, np.int32),
      }),
  )


def random_plan(seed, batch=len(truth.PROMPTS)):
  rng = np.random.default_rng(seed)
  return rng.integers(0, BLOCK, (batch, truth.LENGTH))
