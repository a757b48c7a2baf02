"""Drafting through a selector: lossless, and the same in any batch."""

import dataclasses

import jax
import numpy as np
import pytest

from dflash_jax.decode import engine
from dflash_jax.decode import session as sessions
from dflash_jax.decode import state
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model
from dflash_jax.selector import walks
from tests import tiny

CONFIG = tiny.DRAFTERS['v2']
PROMPTS = [tiny.tokens((n,), seed=n).tolist() for n in (5, 9, 3)]


def session(config, params, walk=walks.greedy):
  target, target_params = tiny.target()
  return sessions.Session(
      engine.Engine(
          target, model.Drafter(config), config.block_size, (), walk
      ),
      state.Params(target_params, params),
  )


@pytest.mark.parametrize('walk', [walks.greedy, walks.look_ahead])
@pytest.mark.parametrize('projected', [False, True])
def test_a_selector_changes_the_drafts_and_not_the_text(walk, projected):
  config = dataclasses.replace(CONFIG, selector_projected=projected)
  decode = session(config, tiny.drafter(config)[1], walk)
  batch = decode.generate(PROMPTS, 24)
  plain = tiny.session().generate(PROMPTS, 24)
  assert [c.tokens for c in batch] == [c.tokens for c in plain]
  alone = decode.generate(PROMPTS[1:2], 24)
  assert alone[0].produced == batch[1].produced


def test_a_head_of_its_own_drafts_its_tokens_only():
  decode = session(tiny.OWN_HEAD, tiny.drafter(tiny.OWN_HEAD)[1])
  batch = decode.generate(PROMPTS, 24)
  plain = tiny.session().generate(PROMPTS, 24)
  assert [c.tokens for c in batch] == [c.tokens for c in plain]


def test_a_new_dflash_2_drafter_is_the_dflash_drafter_to_the_bit():
  """Identity convolutions, and pair scores of zero."""
  v1 = dataclasses.replace(
      CONFIG, conv_kernel_size=None, conv_group_size=None, selector_rank=None,
      selector_top_k=None,
  )
  plain = tiny.drafter(v1)[1]
  fresh = initialize.from_scratch(CONFIG, jax.random.key(0))
  params = {
      name: {**fresh[name], **plain.get(name, {})} for name in fresh
  }
  block = tiny.tokens((2, 3, 5, 32), seed=1).astype(np.float32) / 64
  features = tiny.tokens((2, 14, 2, 32), seed=2).astype(np.float32) / 64
  anchors = np.array([[3, 5, 6], [1, 9, 12]], np.int32)

  def hidden(config, params):
    return jax.jit(
        lambda *inputs: model.Drafter(config).apply(
            {'params': params}, *inputs, method='blocks'
        )
    )(block, anchors, features)

  np.testing.assert_array_equal(hidden(CONFIG, params), hidden(v1, plain))
  rounds = [
      [c.produced for c in session(config, values).generate(PROMPTS, 24)]
      for config, values in ((CONFIG, params), (v1, plain))
  ]
  assert rounds[0] == rounds[1]
