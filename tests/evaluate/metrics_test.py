import numpy as np
import pytest

from dflash_jax.evaluate import metrics

BLOG_RECALL_1 = [0.854, 0.803, 0.794, 0.783, 0.775, 0.759, 0.729]
BLOG_RECALL_16 = [0.995, 0.973, 0.948, 0.926, 0.908, 0.894, 0.878]


def request(accepted, last_produced=None, id='r', seconds=1.0):
  """A `Request` from its accepted counts; `last_produced` cuts the last."""
  produced = [a + 1 for a in accepted]
  if last_produced is not None:
    produced[-1] = last_produced
  tokens = list(range(sum(produced) + 1))
  return metrics.Request(id, 3, 'text', tokens, produced, accepted, seconds)


def random_gold(rng, num_requests, block_size, hit=0.6):
  """Ranks, valid, anchor_request and anchor_position of random texts."""
  slots = block_size - 1
  ranks, valid, owner, position = [], [], [], []
  for i in range(num_requests):
    num_tokens = int(rng.integers(1, 30))
    for p in range(num_tokens - 1):
      row = rng.integers(0, 17, slots)
      row[rng.random(slots) < hit] = 0
      ranks.append(row)
      valid.append([p + k < num_tokens for k in range(1, block_size)])
      owner.append(i)
      position.append(p)
  shape = (len(ranks), slots)
  return (
      np.array(ranks, int).reshape(shape),
      np.array(valid, bool).reshape(shape),
      np.array(owner, int),
      np.array(position, int),
  )


def test_published_rates_give_the_published_lengths():
  assert metrics.expected_length(BLOG_RECALL_1) == pytest.approx(4.27, abs=5e-3)
  oracle = metrics.expected_length(BLOG_RECALL_16)
  assert oracle == pytest.approx(6.80, abs=5e-3)
  assert oracle == pytest.approx(6.79, abs=1.1e-2)  # as published


def test_two_requests_of_two_blocks():
  """Blocks accepting 3 and 1, 2 and 0 mean 1.5, whatever the marginals say."""
  rounds = [request([3, 1]).produced, request([2, 0]).produced]
  accepted = [3, 1, 2, 0]
  assert metrics.request_taus(rounds) == [3.0, 2.0]
  assert metrics.mean_tau(rounds) == metrics.pooled_tau(rounds) == 2.5
  survival = metrics.survival(accepted, 4)
  assert survival == [0.75, 0.5, 0.25]
  assert sum(survival) == 1.5
  assert metrics.expected_length(metrics.conditional(survival)) == 2.5
  # The first wrong slot is at 3, 1, 2, 0; later slots happen to be right. The
  # product of their marginals is not a length.
  ranks = np.array([[0, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0]])
  marginal = metrics.recall_marginal(ranks, np.ones((4, 3), bool), 1)
  assert marginal == [0.75, 0.75, 0.75]
  assert metrics.expected_length(marginal) != 2.5
  conditional = metrics.recall_conditional(ranks, np.ones((4, 3), bool), 1)
  assert conditional == metrics.conditional(survival)


def test_cut_round_counts_once():
  cut = request([2, 3], last_produced=1)
  assert metrics.uncut(cut) == [3]
  assert metrics.mean_tau([cut.produced]) == 2.0
  assert metrics.mean_tau([metrics.uncut(cut)]) == 3.0


def test_mean_and_pooled_differ_when_lengths_vary():
  rounds = [[4], [1, 1, 1]]
  assert metrics.mean_tau(rounds) == 2.5
  assert metrics.pooled_tau(rounds) == 7 / 4


@pytest.mark.parametrize(
    'produced, accepted, num_tokens',
    [
        ([2], [1], 2),  # a token unaccounted for
        ([2, 1], [1], 4),  # a round without its count
        ([1, 2], [1, 1], 4),  # a cut round that is not the last
        ([3], [1], 4),  # more than accepted and bonus
        ([2, 0], [1, 0], 3),  # a round that emitted nothing
    ],
)
def test_inconsistent_request_is_refused(produced, accepted, num_tokens):
  with pytest.raises(ValueError, match='request bad'):
    metrics.Request(
        'bad', 1, '', [0] * num_tokens, produced, accepted, 1.0
    )


@pytest.mark.parametrize('seed', range(20))
def test_lengths_against_naive_loops(seed):
  rng = np.random.default_rng(seed)
  block_size = int(rng.integers(2, 9))
  requests = []
  for _ in range(rng.integers(1, 6)):
    accepted = rng.integers(0, block_size, rng.integers(1, 12)).tolist()
    requests.append(request(accepted, int(rng.integers(1, accepted[-1] + 2))))
  uncut = [p for r in requests for p in metrics.uncut(r)]
  survival = metrics.survival([p - 1 for p in uncut], block_size)
  conditional = metrics.conditional(survival)
  for k in range(1, block_size):
    reached = [p for p in uncut if p - 1 >= k - 1]
    passed = [p for p in uncut if p - 1 >= k]
    expected = len(passed) / len(uncut) if uncut else None
    assert survival[k - 1] == expected
    if not reached:
      assert conditional[k - 1] is None
    else:
      ratio = len(passed) / len(reached)
      assert conditional[k - 1] == pytest.approx(ratio)
  if uncut:
    tau = metrics.pooled_tau([metrics.uncut(r) for r in requests])
    assert 1 + sum(survival) == pytest.approx(tau)
    assert metrics.expected_length(conditional) == pytest.approx(tau)
  accepted = [a for r in requests for a in r.accepted]
  counts = metrics.histogram(accepted, 0, block_size)
  assert counts == [accepted.count(a) for a in range(block_size)]
  acceptance = metrics.draft_acceptance(accepted, block_size)
  drafted = len(accepted) * (block_size - 1)
  assert acceptance == pytest.approx(sum(accepted) / drafted)


@pytest.mark.parametrize('seed', range(10))
@pytest.mark.parametrize('k', [1, 4, 16])
def test_recall_against_naive_loops(seed, k):
  rng = np.random.default_rng(seed)
  ranks, valid, _, _ = random_gold(rng, 5, 6)
  marginal = metrics.recall_marginal(ranks, valid, k)
  conditional = metrics.recall_conditional(ranks, valid, k)
  for slot in range(5):
    right = count = right_after = count_after = 0
    for row, ok in zip(ranks, valid):
      if not ok[slot]:
        continue
      count += 1
      right += row[slot] < k
      if all(rank < k for rank in row[:slot]):
        count_after += 1
        right_after += row[slot] < k
    assert marginal[slot] == (right / count if count else None)
    expected = right_after / count_after if count_after else None
    assert conditional[slot] == expected


@pytest.mark.parametrize('seed', range(20))
@pytest.mark.parametrize('k', [1, 16])
def test_walk_against_token_by_token_replay(seed, k):
  rng = np.random.default_rng(seed)
  block_size = int(rng.integers(1, 9))
  gold = random_gold(rng, 6, block_size)
  walked = metrics.walk(*gold, k=k)
  ranks, _, owner, _ = gold
  for i in range(6):
    rows = ranks[owner == i]
    # Emit the text one token at a time, opening a round when the last closed.
    produced, drafting, anchor = [], False, 0
    for position in range(1, len(rows) + 1):
      if not drafting:
        produced.append(0)
        anchor = position - 1
      produced[-1] += 1
      slot = position - anchor
      drafting = slot < block_size and rows[anchor][slot - 1] < k
    assert walked.get(i, []) == produced


def test_walk_refuses_missing_anchors():
  ranks, valid, owner, position = random_gold(np.random.default_rng(1), 3, 4)
  keep = np.arange(len(owner)) != 2
  with pytest.raises(ValueError, match='in order'):
    metrics.walk(ranks[keep], valid[keep], owner[keep], position[keep], 1)
  with pytest.raises(ValueError, match='in order'):
    metrics.walk(ranks, valid, np.zeros_like(owner), position, 1)


def test_bootstrap_is_deterministic_and_near_the_normal_interval():
  values = np.random.default_rng(0).normal(3.0, 0.5, 200).tolist()
  low, high = metrics.bootstrap_ci95(values)
  assert [low, high] == metrics.bootstrap_ci95(values)
  mean, error = np.mean(values), np.std(values) / np.sqrt(len(values))
  assert low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
  assert high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)
  assert metrics.bootstrap_ci95([2.0, 2.0]) == [2.0, 2.0]


def test_nothing_gives_none():
  assert metrics.mean_tau([]) is None
  assert metrics.mean_tau([[], []]) is None
  assert metrics.mean_tau([[], [2]]) == 2.0
  assert metrics.pooled_tau([[]]) is None
  assert metrics.bootstrap_ci95([3.0]) is None
  assert metrics.survival([], 3) == [None, None]
  assert metrics.conditional([None, None]) == [None, None]
  assert metrics.conditional([0.0, 0.0]) == [0.0, None]
  assert metrics.expected_length([0.0, None]) == 1.0
  assert metrics.draft_acceptance([], 4) is None
  assert metrics.draft_acceptance([0, 0], 1) is None
  assert metrics.histogram([], 1, 3) == [0, 0, 0]
  assert metrics.tokens_per_second([]) is None
  assert metrics.tokens_per_second([request([])]) == 0.0
  none = np.zeros((0, 3), int)
  empty = np.zeros(0, int)
  assert metrics.recall_conditional(none, none == 1, 1) == [None] * 3
  assert metrics.walk(none, none == 1, empty, empty, 1) == {}


def test_throughput_leaves_prefill_out():
  fast, slow = request([1, 1], seconds=1.0), request([0], seconds=4.0)
  assert metrics.tokens_per_second([fast, slow]) == 5 / 5
