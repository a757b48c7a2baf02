import jax
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.decode import engine
from dflash_jax.decode import session as sessions
from tests import tiny
from tests.decode import truth

PROMPTS, STOP_IDS = truth.PROMPTS, truth.STOP_IDS
BATCH = range(len(PROMPTS))
# The block divides some budgets and not others; 1 is the prefill alone.
BUDGETS = (1, 2, 16, 23, 30)


def session(block_size):
  return tiny.session(block_size, STOP_IDS)


def check(completion, row, budget, block_size):
  tokens = truth.expected(row, budget)
  assert completion.tokens == tokens
  assert completion.finished == (tokens[-1] in STOP_IDS)
  produced, accepted = completion.produced, completion.accepted
  assert len(tokens) == 1 + sum(produced)
  assert len(produced) == len(accepted) and completion.seconds >= 0
  for cut, (count, right) in enumerate(zip(produced, accepted), 1):
    assert 0 <= right < block_size and 1 <= count <= right + 1
    assert count == right + 1 or cut == len(produced)


def test_the_oracle_stops_where_its_comment_says():
  lengths = [len(truth.expected(row, 40)) for row in BATCH]
  assert lengths == [15, 30, 40, 10]


@pytest.mark.parametrize('block_size', [1, 2, 3, 5, 8])
def test_a_ragged_batch_says_what_the_target_says(block_size):
  for budget in BUDGETS:
    completions = session(block_size).generate(PROMPTS, budget)
    for row, completion in enumerate(completions):
      check(completion, row, budget, block_size)


@pytest.mark.parametrize('block_size', [1, 5])
def test_one_by_one_says_the_same(block_size):
  for budget in (1, 23, 30):
    together = session(block_size).generate(PROMPTS, budget)
    for row, prompt in enumerate(PROMPTS):
      (alone,) = session(block_size).generate([prompt], budget)
      check(alone, row, budget, block_size)
      assert alone.accepted == together[row].accepted


def test_stream_is_generate_in_pieces():
  for row, prompt in enumerate(PROMPTS):
    pieces = list(session(5).stream(prompt, 23))
    (completion,) = session(5).generate([prompt], 23)
    assert sum(pieces, []) == completion.tokens == truth.expected(row, 23)
    assert list(map(len, pieces)) == [1, *completion.produced]
  assert list(session(5).stream(PROMPTS[2], 1)) == [[45]]


def test_nothing_stays_from_one_request_to_the_next():
  first = session(5).generate(PROMPTS, 23)
  other = session(5).generate(PROMPTS[::-1], 30)
  again = session(5).generate(PROMPTS, 23)
  for row in BATCH:
    check(other[-1 - row], row, 30, 5)
    assert again[row].tokens == first[row].tokens
    assert again[row].accepted == first[row].accepted


@pytest.mark.parametrize('block_size', [1, 5])
def test_a_first_token_that_stops_ends_the_request(block_size):
  prompt = PROMPTS[0] + truth.continuations()[0][:14]
  (completion,) = session(block_size).generate([prompt], 20)
  assert completion.tokens == [0] and completion.finished
  assert completion.produced == completion.accepted == []
  assert list(session(block_size).stream(prompt, 20)) == [[0]]


def test_parameters_may_be_replaced():
  mine = session(1)
  params = mine.params
  try:
    mine.params = params.replace(
        target={**params.target, 'head': -params.target['head']}
    )
    (other,) = mine.generate(PROMPTS[:1], 5)
  finally:
    mine.params = params
  assert other.tokens != truth.expected(0, 5)
  (again,) = mine.generate(PROMPTS[:1], 5)
  assert again.tokens == truth.expected(0, 5)


def test_nothing_is_compiled_for_a_token_a_round_or_a_request():
  """Prompts and budgets change; the buckets of the shapes stay."""
  compiled = []

  def listen(event, duration, **_):
    if 'compile' in event:
      compiled.append(event)

  def requests(prompts, budget):
    session(5).generate(prompts, budget)
    session(5).generate(prompts[:1], budget)
    list(session(5).stream(prompts[0], budget))

  requests([[1, 2], [3], [4] * 5, [6]], 9)
  jax.monitoring.register_event_duration_secs_listener(listen)
  jax.jit(lambda x: x * 7.5)(np.ones(3, np.float32))
  assert compiled
  compiled.clear()
  requests(PROMPTS, 30)
  requests(PROMPTS[::-1], 17)
  seen = list(compiled)
  jax.monitoring.unregister_event_duration_listener(listen)
  assert not seen


@pytest.mark.parametrize('prompts, budget, message', [
    ([[1], []], 5, 'prompt 1 is empty'),
    ([np.zeros(0, np.int32)], 5, 'prompt 0 is empty'),
    ([[1], [2], [3] * 18], 31,
     'prompt 2 has 18 tokens; with max_new_tokens 31 .* context of 48'),
    ([[3] * 200], 1, 'prompt 0 has 200 tokens'),
    ([[1, 64]], 5, 'prompt 0 has a token outside 0 to 63'),
    ([[1, -1]], 5, 'prompt 0 has a token outside'),
    ([[1]], 0, 'max_new_tokens is 0; it must be at least 1'),
])
def test_bad_requests_are_told_apart(prompts, budget, message):
  with pytest.raises(errors.UserError, match=message):
    session(1).generate(prompts, budget)
  if len(prompts) == 1:
    with pytest.raises(errors.UserError, match=message):
      next(session(1).stream(prompts[0], budget))


def test_the_whole_context_may_be_used():
  assert len(PROMPTS[1]) + 30 == tiny.TARGET.max_length
  (completion,) = session(5).generate(PROMPTS[1:2], 30)
  check(completion, 1, 30, 5)


def test_prompts_may_be_arrays():
  (completion,) = session(1).generate([np.array(PROMPTS[0])], 5)
  assert completion.tokens == truth.expected(0, 5)
  assert all(type(token) is int for token in completion.tokens)


def test_buckets_are_powers_of_two():
  sizes = [1, 64, 65, 128, 129, 1000, 8192, 8193]
  assert [sessions.bucket(size) for size in sizes] == [
      64, 64, 128, 128, 256, 1024, 8192, 16384
  ]


@pytest.mark.parametrize('drafter, block_size', [(False, 4), (True, 1)])
def test_an_engine_needs_a_drafter_exactly_for_blocks(drafter, block_size):
  module = tiny.drafter()[0] if drafter else None
  with pytest.raises(ValueError, match='block_size is 1 exactly when'):
    engine.Engine(tiny.target()[0], module, block_size, ())
