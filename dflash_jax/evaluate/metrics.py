"""Acceptance metrics: what was emitted, what was accepted, what was possible.

Projects disagree on what an acceptance length is, so every function says which
definition it computes and who reports it. Words used throughout:

  round: one verify pass; it emits the accepted drafts and one bonus token.
  produced: tokens that a round emitted, bonus included (1 .. block_size).
  accepted: drafted tokens that a round accepted (0 .. block_size - 1), counted
    before a stop token or the token budget cut the round.
  cut round: produced < accepted + 1. Only a request's last round can be cut.
  tau: the mean of produced, bonus included.

Undefined values (a mean of nothing) are None, so that results are JSON.
"""

from collections.abc import Iterable, Sequence
import dataclasses

from jaxtyping import Bool, Int
import numpy as np

from dflash_jax.typing import typed

CANDIDATES = 16  # ranks are clipped here: 16 means "not among the top 16"
BOOTSTRAP_SAMPLES = 4000


@dataclasses.dataclass(frozen=True)
class Request:
  """One decoded prompt; an autoregressive one has rounds of 1 token each.

  Attributes:
    id: the prompt's name, the same in both decodes of one prompt.
    prompt_tokens: length of the prompt.
    text: the emitted text.
    tokens: emitted token ids; the first comes from prefill, not from a round.
    produced: tokens emitted by each round, after cuts.
    accepted: drafted tokens accepted in each round, before cuts.
    seconds: decode wall time after prefill; in a batch, its share.
  """

  id: str
  prompt_tokens: int
  text: str
  tokens: list[int]
  produced: list[int]
  accepted: list[int]
  seconds: float

  def __post_init__(self):
    full = [accepted + 1 for accepted in self.accepted]
    if (
        sum(self.produced) != len(self.tokens) - 1
        or len(self.produced) != len(full)
        or self.produced[:-1] != full[:-1]
        or any(not 1 <= p <= f for p, f in zip(self.produced, full))
    ):
      raise ValueError(
          f'request {self.id}: produced {self.produced} and accepted'
          f' {self.accepted} do not account for {len(self.tokens)} tokens'
      )


def uncut(request: Request) -> list[int]:
  """`produced` of the rounds that neither stop token nor budget cut short."""
  pairs = zip(request.produced, request.accepted)
  return [produced for produced, accepted in pairs if produced == accepted + 1]


def request_taus(rounds: Iterable[Sequence[int]]) -> list[float]:
  """Mean produced of each request; a request without rounds has none."""
  return [sum(produced) / len(produced) for produced in rounds if produced]


def mean_tau(rounds: Iterable[Sequence[int]]) -> float | None:
  """Mean over requests of each request's mean produced.

  The headline of z-lab, Model-Optimizer and the DFlash 2 blog.
  """
  return _mean(request_taus(rounds))


def pooled_tau(rounds: Iterable[Sequence[int]]) -> float | None:
  """All produced tokens over all rounds (DeepSpec, Spec-Bench, SGLang)."""
  return _mean([length for produced in rounds for length in produced])


def bootstrap_ci95(values: Sequence[float]) -> list[float] | None:
  """95% percentile bootstrap interval of the mean, resampling requests.

  The seed is fixed. None for fewer than two values, where resampling says
  nothing.
  """
  n = len(values)
  if n < 2:
    return None
  rng = np.random.default_rng(0)
  counts = rng.multinomial(n, np.full(n, 1 / n), size=BOOTSTRAP_SAMPLES)
  means = counts @ np.asarray(values, np.float64) / n
  return [float(x) for x in np.quantile(means, [0.025, 0.975])]


def survival(accepted: Sequence[int], block_size: int) -> list[float | None]:
  """P(the first k drafts are all accepted), k = 1 .. block_size - 1.

  vLLM's per-position rate. On uncut rounds its sum is their pooled tau - 1.
  """
  counts = [sum(a >= k for a in accepted) for k in range(1, block_size)]
  return [_ratio(count, len(accepted)) for count in counts]


def conditional(survival_by_slot: Sequence[float | None]) -> list[float | None]:
  """P(draft k accepted given k - 1 was); survival is its running product.

  Model-Optimizer's "conditional", EAGLE's n-alpha, the DFlash 2 blog's tables.
  """
  if None in survival_by_slot:  # no rounds at all
    return list(survival_by_slot)
  pairs = zip(survival_by_slot, [1.0, *survival_by_slot])
  return [_ratio(now, before) for now, before in pairs]


def expected_length(rates: Sequence[float | None]) -> float:
  """Expected produced of an uncut round: 1 + sum_k prod_{j <= k} rates_j.

  Rates are conditional on all earlier slots (marginal ones give no length); the
  sum ends at the first undefined one.
  """
  length = survived = 1.0
  for rate in rates:
    if rate is None:
      break
    survived *= rate
    length += survived
  return length


def draft_acceptance(accepted: Sequence[int], block_size: int) -> float | None:
  """Accepted over drafted tokens of all rounds, before cuts (vLLM, llama.cpp).

  It falls as the block grows even where tau rises: no goal to tune for.
  """
  return _ratio(sum(accepted), len(accepted) * (block_size - 1))


def histogram(lengths: Sequence[int], first: int, block_size: int) -> list[int]:
  """Counts of the lengths first .. first + block_size - 1.

  Produced lengths start at 1, accepted ones at 0.
  """
  shifted = np.asarray(lengths, int) - first
  return np.bincount(shifted, minlength=block_size).tolist()


@typed
def recall_marginal(
    ranks: Int[np.ndarray, 'A slots'],
    valid: Bool[np.ndarray, 'A slots'],
    k: int,
) -> list[float | None]:
  """Share of anchors whose true token is in the top k, slot by slot.

  No condition on earlier slots (trainers' "accuracy" at k = 1): not comparable
  with survival or conditional acceptance.
  """
  return _rate_by_slot(ranks < k, valid)


@typed
def recall_conditional(
    ranks: Int[np.ndarray, 'A slots'],
    valid: Bool[np.ndarray, 'A slots'],
    k: int,
) -> list[float | None]:
  """The same among anchors whose earlier slots all were in the top k.

  The DFlash 2 blog's Recall@k, "each conditioned on all earlier ones being
  right": of rank 0 for recall@1, in the top 16 for recall@16. Anchors are all
  response positions, not only those at which a decode stopped.
  """
  hits = (ranks < k) & valid
  earlier = np.cumprod(hits, axis=1, dtype=bool)[:, :-1]
  earlier = np.pad(earlier, ((0, 0), (1, 0)), constant_values=True)
  return _rate_by_slot(hits, valid & earlier[:, : valid.shape[1]])


@typed
def walk(
    ranks: Int[np.ndarray, 'A slots'],
    valid: Bool[np.ndarray, 'A slots'],
    anchor_request: Int[np.ndarray, 'A'],
    anchor_position: Int[np.ndarray, 'A'],
    k: int,
) -> dict[int, list[int]]:
  """Replays the decode loop over emitted text, offline, for a top-k selector.

  From each first token: accept the longest prefix of slots with rank < k, add
  the bonus token, jump to it, repeat; the end of the text cuts the last round.

  Args:
    ranks: rank of the true token in the drafter's logits, by anchor and slot.
    valid: False where the slot lies past the end of the text.
    anchor_request: request index of each anchor.
    anchor_position: its offset in the tokens; all but the last, in order.
    k: 1 replays the greedy decode; 16 is an ideal selector of 16 candidates.

  Returns:
    produced by request index; a request without anchors is absent.

  Raises:
    ValueError: anchors are missing or out of order.
  """
  starts = np.flatnonzero(anchor_position == 0)
  sizes = np.diff(np.append(starts, len(anchor_position)))
  offsets = np.arange(sizes.sum()) - np.repeat(starts, sizes)
  owners = np.repeat(anchor_request[starts], sizes)
  ordered = np.array_equal(offsets, anchor_position)
  owned = np.array_equal(owners, anchor_request)
  if not ordered or not owned or np.unique(owners).size != starts.size:
    raise ValueError('anchors must be all positions of each request, in order')
  steps = np.cumprod((ranks < k) & valid, axis=1).sum(axis=1) + 1
  produced = {}
  for start, size in zip(starts, sizes):
    rounds, position = [], 0
    while position < size:
      rounds.append(min(int(steps[start + position]), int(size - position)))
      position += rounds[-1]
    produced[int(anchor_request[start])] = rounds
  return produced


def tokens_per_second(requests: Sequence[Request]) -> float | None:
  """Pooled decode rate after prefill: sum of tokens - 1 over sum of seconds."""
  tokens = sum(len(request.tokens) - 1 for request in requests)
  return _ratio(tokens, sum(request.seconds for request in requests))


def _rate_by_slot(hits: np.ndarray, eligible: np.ndarray) -> list[float | None]:
  pairs = zip((hits & eligible).sum(axis=0), eligible.sum(axis=0))
  return [_ratio(right, count) for right, count in pairs]


def _mean(values: Sequence[float]) -> float | None:
  return _ratio(sum(values), len(values))


def _ratio(numerator: float, denominator: float | None) -> float | None:
  return float(numerator / denominator) if denominator else None
