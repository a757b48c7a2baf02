"""What a round leaves behind, whatever the drafter was right about."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.decode import session as sessions
from tests import tiny
from tests.decode import scripted
from tests.decode import truth

PROMPTS, BLOCK = truth.PROMPTS, scripted.BLOCK
BATCH = range(len(PROMPTS))
CAPACITY = 64
COUNTS = [np.full((1, truth.LENGTH), count) for count in range(BLOCK)]
PLANS = pytest.mark.parametrize(
    'plan', [*COUNTS, scripted.random_plan(0), scripted.random_plan(1)],
    ids=['always wrong', 1, 2, 3, 'always right', 'mixed', 'mixed too'],
)
prefill = jax.jit(scripted.make().prefill, static_argnames='capacity')
round_ = jax.jit(scripted.make().round)
generate = jax.jit(scripted.make().generate, donate_argnums=1)


def start(params, budget):
  padded = np.zeros((len(PROMPTS), CAPACITY), np.int32)
  for row, prompt in zip(padded, PROMPTS):
    row[: len(prompt)] = prompt
  lengths = np.array(list(map(len, PROMPTS)), np.int32)
  return prefill(
      params, jnp.asarray(padded), jnp.asarray(lengths),
      jnp.asarray(lengths + budget), capacity=CAPACITY,
  )


@functools.cache
def _features_and_injection():
  target, _ = tiny.target()
  drafter, _ = tiny.drafter()

  @jax.jit
  def run(params, state):
    _, features, _ = target.apply(
        {'params': params.target}, state.tokens,
        taps=drafter.config.target_layer_ids,
    )
    injected = drafter.apply(
        {'params': params.drafter['model']}, state.features, state.draft_cache,
        method='inject',
    )
    return features, injected

  return run


def check(params, state):
  """State equals that of a fresh prefill of the committed tokens."""
  anchors = np.asarray(state.length) - 1
  fresh = prefill(
      params, state.tokens, jnp.asarray(anchors), state.limit,
      capacity=CAPACITY,
  )
  features, injected = jax.device_get(_features_and_injection()(params, state))
  state, fresh = jax.device_get((state, fresh))
  np.testing.assert_array_equal(state.target_cache.length, anchors)
  waiting = anchors - state.draft_cache.length
  np.testing.assert_array_equal(state.num_features, waiting)
  for row, (length, wait) in enumerate(zip(state.length, waiting)):
    # The anchor is the target's own word, and the rest of the buffer blank.
    assert fresh.tokens[row, length - 1] == state.tokens[row, length - 1]
    assert not state.tokens[row, length:].any()
    for ours, theirs in (
        (state.target_cache, fresh.target_cache),
        (injected, fresh.draft_cache),
    ):
      for layer in range(len(ours.keys)):
        for a, b in zip(
            tiny.cache_rows(ours, layer), tiny.cache_rows(theirs, layer)
        ):
          np.testing.assert_allclose(
              a[row, : length - 1], b[row, : length - 1], rtol=1e-4, atol=2e-4
          )
    np.testing.assert_allclose(
        state.features[row, :wait],
        features[row, length - 1 - wait : length - 1],
        rtol=1e-4, atol=2e-4,
    )


def check_logs(state, plan, budget, num_rounds):
  """Tokens and logs after `num_rounds` rounds of a run."""
  state = jax.device_get(state)
  for row, prompt in enumerate(PROMPTS):
    right = np.broadcast_to(plan, (len(PROMPTS), truth.LENGTH))[row]
    produced = truth.rounds(row, budget, right)
    done = len(produced) <= num_rounds
    produced = produced[:num_rounds]
    assert state.num_rounds[row] == len(produced)
    assert state.done[row] == done
    tokens = truth.expected(row, budget)[: 1 + sum(produced)]
    length = len(prompt) + len(tokens)
    assert state.length[row] == length
    assert state.tokens[row, :length].tolist() == prompt + tokens
    for log, exact in ((state.accepted, right), (state.produced, produced)):
      expected = np.zeros(CAPACITY, int)
      expected[: len(produced)] = exact[: len(produced)]
      np.testing.assert_array_equal(log[row], expected)


@PLANS
def test_every_round_leaves_what_a_fresh_prefill_would(plan):
  """Rows end in different rounds, and stay as they are from then on."""
  params = scripted.params(plan)
  budget = 24
  state = start(params, budget)
  num_rounds = 0
  check(params, state)
  check_logs(state, plan, budget, num_rounds)
  while not state.done.all():
    state = round_(params, state)
    num_rounds += 1
    check(params, state)
    check_logs(state, plan, budget, num_rounds)
  for _ in range(2):
    state = round_(params, state)
    check(params, state)
    check_logs(state, plan, budget, num_rounds)


@pytest.mark.parametrize('budget', [1, 2, 5, 15, 24, 30])
def test_the_loop_is_the_rounds(budget):
  """Budgets cut blocks, and stop tokens lie at every place within one."""
  for plan in [*COUNTS, *map(scripted.random_plan, range(6))]:
    params = scripted.params(plan)
    state = generate(params, start(params, budget))
    check_logs(state, plan, budget, truth.LENGTH)


def test_stream_yields_whole_blocks_and_compiles_nothing_for_their_sizes():
  compiled = []

  def listen(event, duration, **_):
    if 'compile' in event:
      compiled.append(event)

  session = sessions.Session(
      scripted.make(), scripted.params(COUNTS[0], [1])
  )
  list(session.stream(PROMPTS[1], 30))
  plan = np.array([[4, 0, 2, 3, 1, *[4] * 35]])
  session.params = scripted.params(plan, [1])
  jax.monitoring.register_event_duration_secs_listener(listen)
  pieces = list(session.stream(PROMPTS[1], 30))
  jax.monitoring.unregister_event_duration_listener(listen)
  assert [len(piece) for piece in pieces] == [1, 5, 1, 3, 4, 2, 5, 5, 4]
  assert sum(pieces, []) == truth.expected(1, 30)
  assert not compiled
