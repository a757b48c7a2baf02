"""The state of a batch of requests between rounds."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp

from dflash_jax.nn import cache as kv
from dflash_jax.verifier import law as laws


@struct.dataclass
class Requests:
  """What the rows of a batch ask for when they sample.

  Attributes:
    law: settings of each row.
    keys: random key of each row's seed and request, `[B]`.
  """

  law: laws.Law
  keys: jax.Array


@struct.dataclass
class Params:
  """Parameters of the pair. `drafter` is None for autoregressive decoding."""

  target: Any
  drafter: Any = None


@struct.dataclass
class DecodeState:
  """One row a request; every row is a sequence of committed tokens.

  Invariant of a running row: target cache length == draft cache length +
  waiting features == `length - 1`, the position of the anchor, which is the
  last committed token and is in no cache yet.

  Attributes:
    tokens: committed tokens, int32 `[B, S]`; zeros from `length` on.
    length: committed tokens of each row, prompt included, int32 `[B]`.
    limit: `length` at which a row ends, int32 `[B]`.
    done: the row has ended, bool `[B]`.
    target_cache: of the target.
    draft_cache: injected context of the drafter; None without a drafter.
    features: target features of the last round's block, waiting to be
      injected, `[B, L, P, D]`.
    num_features: how many of them are real, int32 `[B]`.
    num_rounds: verify passes so far, int32 `[B]`.
    accepted: drafts accepted in each round before any cut, int32 `[B, S]`.
    produced: tokens committed in each round, int32 `[B, S]`; 0 past the end.
    log_probs: of each committed token under the target's plain softmax (no
      temperature, no filter), `[B, S]`; zeros in the prompt.
    requests: None decodes greedily.
    overlap: `sum_x min(p(x), q(x)) = 1 - TV` between target and drafter, summed
      over the slots that a round got to, `[B, S]`; None for greedy decoding.
    in_prompt: tokens of the prompt, bool `[B, V]`; None without penalties.
    counts: of each token in the output, int32 `[B, V]`; None likewise.
  """

  tokens: jax.Array
  length: jax.Array
  limit: jax.Array
  done: jax.Array
  target_cache: kv.KVCache
  draft_cache: kv.KVCache | None
  features: jax.Array
  num_features: jax.Array
  num_rounds: jax.Array
  accepted: jax.Array
  produced: jax.Array
  log_probs: jax.Array
  requests: Requests | None = None
  overlap: jax.Array | None = None
  in_prompt: jax.Array | None = None
  counts: jax.Array | None = None


def put_row(
    buffer: jax.Array, start: jax.Array, new: jax.Array, count: jax.Array
) -> jax.Array:
  """`buffer[b, start[b] : start[b] + count[b]] = new[b, :count[b]]`.

  Args:
    buffer: `[B, S]`.
    start: int32 `[B]`.
    new: `[B, T]`.
    count: int32 `[B]`, at most T.
  """
  offset = jnp.arange(buffer.shape[1])[None] - start[:, None]
  source = jnp.clip(offset, 0, new.shape[1] - 1)
  values = jnp.take_along_axis(new, source, axis=1).astype(buffer.dtype)
  return jnp.where((offset >= 0) & (offset < count[:, None]), values, buffer)
