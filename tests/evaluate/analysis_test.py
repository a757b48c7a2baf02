"""Judging what was decoded, by another path than decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.decode import engine
from dflash_jax.decode import session as sessions
from dflash_jax.decode import state
from dflash_jax.drafter import model
from dflash_jax.evaluate import analysis
from dflash_jax.evaluate import metrics
from dflash_jax.selector import walks
from dflash_jax.target import decoder
from tests import tiny

PROMPTS = [np.asarray(tiny.tokens((n,), seed=n)).tolist() for n in (5, 9, 3)]
BLOCK = 5


@functools.cache
def teacher():
  return analysis.Teacher(*tiny.target())


@functools.cache
def decoded(block_size=BLOCK):
  return tiny.session(block_size).generate(PROMPTS, 24)


def test_greedy_output_has_no_margin_and_a_wrong_token_has():
  for prompt, completion in zip(PROMPTS, decoded()):
    tokens = completion.tokens
    assert teacher().margins(prompt, tokens).max() < analysis.NEAR_TIE
    wrong = [*tokens[:7], (tokens[7] + 1) % 64, *tokens[8:]]
    margins = teacher().margins(prompt, wrong)
    assert margins.shape == (24,)
    assert margins[:7].max() < analysis.NEAR_TIE < margins[7]


@pytest.mark.parametrize('kind, walk', [
    ('full', walks.greedy), ('v2', walks.greedy), ('v2', walks.look_ahead),
])
def test_hits_replay_the_decode(kind, walk):
  module, target_params = tiny.target()
  drafter, params = tiny.drafter(tiny.DRAFTERS[kind])
  session = sessions.Session(
      engine.Engine(module, drafter, BLOCK, (), walk),
      state.Params(target_params, params),
  )
  completions = session.generate(PROMPTS, 24)
  ranker = analysis.Ranker(teacher(), drafter, params, walk)
  misses, valid, request, position = [], [], [], []
  for index, (prompt, completion) in enumerate(zip(PROMPTS, completions)):
    ranks, hits, exists = ranker.ranks(prompt, completion.tokens)
    assert ranks.shape == hits.shape == (23, BLOCK - 1)
    if kind == 'full':
      np.testing.assert_array_equal(hits, ranks == 0)
    else:
      # The selector picks from the best six, and not the first of them only.
      assert (ranks[hits] < 6).all()
    assert exists.sum(axis=1).tolist() == [4] * 20 + [3, 2, 1]
    misses.append((~hits).astype(int))
    valid.append(exists)
    request.append(np.full(len(hits), index))
    position.append(np.arange(len(hits)))
  replay = metrics.walk(
      *map(np.concatenate, (misses, valid, request, position)), k=1
  )
  assert [replay[i] for i in range(3)] == [c.produced for c in completions]


def test_gold_ranks_by_sorting():
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 12, (6, 40)).astype(np.float32)  # With ties.
  gold = rng.integers(0, 40, 6)
  order = np.argsort(-logits, axis=1, kind='stable')
  exact = [list(order[i]).index(gold[i]) for i in range(6)]
  found = analysis.gold_ranks(jnp.asarray(logits), jnp.asarray(gold))
  assert found.tolist() == [min(rank, 16) for rank in exact]


@functools.partial(jax.jit, static_argnames='config')
def _decode_block(config, target_params, params, tokens, anchor):
  """Logits of one block in the manner of decoding, from a cache."""
  target = decoder.Decoder(tiny.TARGET).bind({'params': target_params})
  drafter = model.Drafter(config)
  _, features, _ = target(tokens[None], taps=config.target_layer_ids)
  cache = drafter.apply(
      {'params': params}, features, drafter.empty_cache(1, 64), method='inject'
  ).replace(length=anchor[None])
  block = model.block_tokens(
      tokens[anchor][None], config.block_size, config.mask_token_id
  )
  hidden, _ = drafter.apply({'params': params}, target.embed(block), cache)
  return drafter.apply(
      {'params': params}, hidden[0, 1:], target.head, method='logits'
  )


@pytest.mark.parametrize('kind', ['full', 'sliding'])
def test_ranks_are_those_of_blocks_decoded_alone(kind):
  drafter, params = tiny.drafter(tiny.DRAFTERS[kind])
  prompt, text = PROMPTS[0], decoded()[0].tokens
  ranker = analysis.Ranker(teacher(), drafter, params)
  ranks, _, valid = ranker.ranks(prompt, text)
  tokens = np.array(prompt + text, np.int32)
  differ = 0
  for index, anchor in enumerate(range(len(prompt), len(tokens) - 1)):
    # Nothing from the anchor on may matter but the anchor itself.
    seen = np.where(np.arange(len(tokens)) <= anchor, tokens, 1)
    logits = np.asarray(_decode_block(
        drafter.config, teacher().params, params,
        jnp.asarray(seen, jnp.int32), jnp.int32(anchor),
    ))
    for slot in range(1, BLOCK):
      position = anchor + slot
      assert valid[index, slot - 1] == (position < len(tokens))
      if position < len(tokens):
        gold = logits[slot - 1, tokens[position]]
        # Rounding may swap neighbours.
        low = (logits[slot - 1] > gold + 1e-4).sum()
        high = (logits[slot - 1] > gold - 1e-4).sum() - 1
        assert min(low, 16) <= ranks[index, slot - 1] <= min(high, 16)
        differ += ranks[index, slot - 1] not in (0, 16)
  assert differ >= 5


def test_a_single_token_has_no_ranks():
  drafter, params = tiny.drafter()
  ranker = analysis.Ranker(teacher(), drafter, params)
  ranks, hits, valid = ranker.ranks([1, 2], [3])
  assert ranks.shape == hits.shape == valid.shape == (0, BLOCK - 1)
