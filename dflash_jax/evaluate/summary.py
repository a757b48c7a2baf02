"""One evaluation as a flat dictionary, and as five console lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash_jax.evaluate import metrics


def summarize(
    *,
    requests_spec: Sequence[metrics.Request],
    requests_ar: Sequence[metrics.Request],
    ranks: np.ndarray,
    hits: np.ndarray,
    valid: np.ndarray,
    anchor_request: np.ndarray,
    anchor_position: np.ndarray,
    block_size: int,
    lossless: Mapping[str, Any],
    versions: Mapping[str, str],
    device: str,
) -> dict[str, Any]:
  """Everything that `summary.json` holds; undefined numbers are None.

  Slots are lists of block_size - 1 numbers, first drafted token first.
  `survival` and `conditional` come from the uncut rounds of the real decode;
  the recalls from every response position as anchor. `tau_*_uncut` leave cut
  rounds out; `tau_pooled_before_cut` counts drafts that were accepted and then
  discarded, as vLLM does. `ideal_tau` is `mean_tau` of a walk that picks right
  whenever the true token is among 16 candidates. `simulated_tau` replays the
  greedy decode from the hits and `simulated_equals_decoded` says whether every
  round came out the same: if not, ranks and decode disagree about the drafter.
  `round_cost` is the time of one round in autoregressive steps, hence the tau
  at which speculation breaks even: speedup = tau_pooled / round_cost.

  Args:
    requests_spec: the speculative decode, in prompt order.
    requests_ar: the same prompts at block 1 in the same engine and run.
    ranks: see `metrics.walk`.
    hits: whether the draft of each anchor and slot is the true token.
    valid: see `metrics.walk`, as the next two.
    anchor_request: index into `requests_spec`.
    anchor_position: likewise.
    block_size: slots of a block, the anchor included.
    lossless: `lossless` (bool) and `near_ties` (int) of the lossless check.
    versions: package versions.
    device: what the decode ran on.

  Raises:
    ValueError: the two decodes are not of the same prompts.
  """
  if [r.id for r in requests_spec] != [r.id for r in requests_ar]:
    raise ValueError('requests_spec and requests_ar are not the same prompts')
  rounds = [request.produced for request in requests_spec]
  uncut = [metrics.uncut(request) for request in requests_spec]
  accepted = [a for request in requests_spec for a in request.accepted]
  produced = [p for request in rounds for p in request]
  whole = [p - 1 for request in uncut for p in request]
  survival = metrics.survival(whole, block_size)
  anchors = (valid, anchor_request, anchor_position)
  missed = np.where(hits, 0, metrics.CANDIDATES)
  simulated = metrics.walk(missed, *anchors, k=1)
  ideal = metrics.walk(ranks, *anchors, k=metrics.CANDIDATES).values()
  ar_rate = metrics.tokens_per_second(requests_ar)
  spec_rate = metrics.tokens_per_second(requests_spec)
  speedup = spec_rate / ar_rate if spec_rate and ar_rate else None
  tau_pooled = metrics.pooled_tau(rounds)
  before_cut = metrics.pooled_tau([[a + 1 for a in accepted]])
  return {
      'lossless': bool(lossless['lossless']),
      'identical_to_ar': [r.tokens for r in requests_spec]
      == [r.tokens for r in requests_ar],
      'near_ties': int(lossless['near_ties']),
      'num_prompts': len(requests_spec),
      'tokens_total': sum(len(r.tokens) for r in requests_spec),
      'block_size': block_size,
      'rounds': len(produced),
      'cut_rounds': len(produced) - len(whole),
      'tau_mean': metrics.mean_tau(rounds),
      'tau_ci95': metrics.bootstrap_ci95(metrics.request_taus(rounds)),
      'tau_pooled': tau_pooled,
      'tau_mean_uncut': metrics.mean_tau(uncut),
      'tau_pooled_uncut': metrics.pooled_tau(uncut),
      'tau_pooled_before_cut': before_cut,
      'ideal_tau': metrics.mean_tau(ideal),
      'ideal_tau_pooled': metrics.pooled_tau(ideal),
      'simulated_tau': metrics.mean_tau(simulated.values()),
      'simulated_equals_decoded': all(
          simulated.get(i, []) == real for i, real in enumerate(rounds)
      ),
      'draft_acceptance': metrics.draft_acceptance(accepted, block_size),
      'recall_at_1': metrics.recall_conditional(ranks, valid, 1),
      'recall_at_16': metrics.recall_conditional(
          ranks, valid, metrics.CANDIDATES
      ),
      'recall_at_1_marginal': metrics.recall_marginal(ranks, valid, 1),
      'recall_at_16_marginal': metrics.recall_marginal(
          ranks, valid, metrics.CANDIDATES
      ),
      'survival': survival,
      'conditional': metrics.conditional(survival),
      'produced_histogram': metrics.histogram(produced, 1, block_size),
      'accepted_histogram': metrics.histogram(accepted, 0, block_size),
      'ar_tokens_per_second': ar_rate,
      'spec_tokens_per_second': spec_rate,
      'speedup': speedup,
      'round_cost': tau_pooled / speedup if speedup else None,
      'versions': dict(versions),
      'device': device,
  }


def console_lines(summary: Mapping[str, Any]) -> list[str]:
  """The five lines that users of the z-lab reference look for at the end."""
  block = summary['block_size']
  counts = summary['produced_histogram']
  interval = summary['tau_ci95']
  bounds = '[{:.2f}, {:.2f}] '.format(*interval) if interval else ''
  shares = ' '.join(
      f'{length}: {100 * count / max(sum(counts), 1):.1f}%'
      for length, count in enumerate(counts, 1)
  )
  rows = {
      'Baseline throughput': number(summary['ar_tokens_per_second'])
      + ' tokens/s (block 1, same engine)',
      'DFlash throughput': number(summary['spec_tokens_per_second'])
      + f' tokens/s (block {block}: {block - 1} drafted)',
      'Decoding speed-up': number(summary['speedup'], 'x'),
      'Average acceptance length': number(summary['tau_mean'])
      + f' {bounds}tokens a round, bonus included, mean over requests',
      'Acceptance length histogram': shares,
  }
  return [f'{name + ":":29}{value}' for name, value in rows.items()]


def number(value: float | None, unit: str = '') -> str:
  """Two decimals and the unit, or a dash for an undefined value."""
  return '-' if value is None else f'{value:.2f}{unit}'
