import json

import numpy as np
import pytest

from dflash_jax.evaluate import metrics
from dflash_jax.evaluate import summary as summary_lib

BLOCK = 4
ISSUE_KEYS = """
    lossless identical_to_ar near_ties num_prompts block_size tau_mean
    tau_pooled tau_ci95 ideal_tau recall_at_1 recall_at_16 survival conditional
    ar_tokens_per_second spec_tokens_per_second speedup versions device
""".split()


def decode(id, hits, num_tokens, k, block, seconds):
  """The `Request` that a drafter with these hits would give."""
  produced, accepted, position = [], [], 0
  while position < num_tokens - 1:
    right = 0
    while right < block - 1 and hits[position, right] < k:
      right += 1
    accepted.append(right)
    produced.append(min(right + 1, num_tokens - 1 - position))
    position += produced[-1]
  tokens = list(range(num_tokens))
  return metrics.Request(id, 5, 'x', tokens, produced, accepted, seconds)


def evaluation(lengths=(30, 1, 17, 24)):
  """Keyword arguments of `summarize` for a random drafter."""
  rng = np.random.default_rng(0)
  spec, ar, ranks, valid, owner, position = [], [], [], [], [], []
  for i, length in enumerate(lengths):
    rows = rng.integers(0, 17, (length, BLOCK - 1))
    rows[rng.random(rows.shape) < 0.5] = 0
    spec.append(decode(f'p{i}', rows, length, 1, BLOCK, length / 60))
    ar.append(decode(f'p{i}', rows, length, 1, 1, length / 40))
    for p in range(length - 1):
      ranks.append(rows[p])
      valid.append([p + k < length for k in range(1, BLOCK)])
      owner.append(i)
      position.append(p)
  shape = (len(ranks), BLOCK - 1)
  return {
      'requests_spec': spec,
      'requests_ar': ar,
      'ranks': np.array(ranks, int).reshape(shape),
      'hits': np.array(ranks, int).reshape(shape) == 0,
      'valid': np.array(valid, bool).reshape(shape),
      'anchor_request': np.array(owner, int),
      'anchor_position': np.array(position, int),
      'block_size': BLOCK,
      'lossless': {'lossless': True, 'near_ties': 0},
      'versions': {'jax': '0'},
      'device': 'cpu',
  }


def test_summary_is_complete_and_consistent():
  arguments = evaluation()
  summary = summary_lib.summarize(**arguments)
  assert set(ISSUE_KEYS) <= set(summary)
  assert summary['lossless'] is True and summary['identical_to_ar'] is True
  assert summary['num_prompts'] == 4 and summary['tokens_total'] == 72
  assert summary['simulated_equals_decoded']
  assert summary['simulated_tau'] == summary['tau_mean']
  assert summary['ideal_tau'] >= summary['tau_mean']
  low, high = summary['tau_ci95']
  assert low < summary['tau_mean'] < high
  survived = sum(summary['survival'])
  assert 1 + survived == pytest.approx(summary['tau_pooled_uncut'])
  assert sum(summary['produced_histogram']) == summary['rounds']
  assert sum(summary['accepted_histogram']) == summary['rounds']
  lengths = {len(summary[k]) for k in ('survival', 'conditional')}
  lengths |= {len(summary[f'recall_at_{k}']) for k in (1, 16)}
  assert lengths == {BLOCK - 1}
  speedup = summary['tau_pooled'] / summary['round_cost']
  assert summary['speedup'] == pytest.approx(speedup)
  text = json.dumps(summary, allow_nan=False)
  assert json.loads(text) == summary


def test_cut_rounds_are_told_apart():
  """A last round that accepted 3 but had room for 1 token."""
  arguments = evaluation(())
  ranks = np.array([[0, 0, 9], [9, 9, 9], [9, 9, 9], [0, 9, 9]])
  spec = metrics.Request('a', 1, '', [0] * 5, [3, 1], [2, 3], 1.0)
  ar = metrics.Request('a', 1, '', [0] * 5, [1] * 4, [0] * 4, 1.0)
  arguments |= {
      'requests_spec': [spec],
      'requests_ar': [ar],
      'ranks': ranks,
      'hits': ranks == 0,
      'valid': np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]) == 1,
      'anchor_request': np.zeros(4, int),
      'anchor_position': np.arange(4),
  }
  summary = summary_lib.summarize(**arguments)
  assert summary['simulated_equals_decoded']
  assert summary['cut_rounds'] == 1
  assert summary['tau_pooled'] == 2.0
  assert summary['tau_pooled_uncut'] == 3.0
  assert summary['tau_pooled_before_cut'] == 3.5
  assert summary['accepted_histogram'] == [0, 0, 1, 1]


def test_hits_that_disagree_with_the_decode_are_noticed():
  arguments = evaluation()
  arguments['hits'] = ~arguments['hits']
  assert not summary_lib.summarize(**arguments)['simulated_equals_decoded']


def test_other_output_or_other_prompts():
  arguments = evaluation()
  first = arguments['requests_ar'][0]
  tokens = [*first.tokens[:-1], 7]
  other = metrics.Request(
      first.id, 5, 'x', tokens, first.produced, first.accepted, 1.0
  )
  arguments['requests_ar'] = [other, *arguments['requests_ar'][1:]]
  assert summary_lib.summarize(**arguments)['identical_to_ar'] is False
  arguments['requests_ar'] = arguments['requests_ar'][1:]
  with pytest.raises(ValueError, match='same prompts'):
    summary_lib.summarize(**arguments)


@pytest.mark.parametrize('lengths', [(), (1, 1)])
def test_no_rounds_at_all(lengths):
  summary = summary_lib.summarize(**evaluation(lengths))
  assert summary['tau_mean'] is None and summary['ideal_tau'] is None
  assert summary['speedup'] is None and summary['round_cost'] is None
  assert summary['recall_at_1'] == [None] * 3
  json.dumps(summary, allow_nan=False)
  assert len(summary_lib.console_lines(summary)) == 5


def test_console_lines():
  summary = summary_lib.summarize(**evaluation())
  summary |= {
      'ar_tokens_per_second': 20.0,
      'spec_tokens_per_second': 31.0,
      'speedup': 1.55,
      'tau_mean': 2.0,
      'tau_ci95': [1.75, 2.25],
      'produced_histogram': [5, 2, 2, 1],
  }
  assert summary_lib.console_lines(summary) == [
      'Baseline throughput:         20.00 tokens/s (block 1, same engine)',
      'DFlash throughput:           31.00 tokens/s (block 4: 3 drafted)',
      'Decoding speed-up:           1.55x',
      'Average acceptance length:   2.00 [1.75, 2.25] tokens a round, bonus'
      ' included, mean over requests',
      'Acceptance length histogram: 1: 50.0% 2: 20.0% 3: 20.0% 4: 10.0%',
  ]
