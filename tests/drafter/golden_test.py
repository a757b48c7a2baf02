"""The drafter against stored outputs of the reference: no PyTorch needed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.selector import module as selectors
from dflash_jax.selector import walks
from tests import tiny
from tests.golden import make

GOLDEN = json.loads(make.PATH.read_text())


@pytest.mark.parametrize('kind', tiny.DRAFTERS)
def test_outputs_of_the_reference(kind):
  config, golden = tiny.DRAFTERS[kind], GOLDEN[kind]
  module, params = tiny.drafter(config)
  features, block, logits = map(jnp.asarray, make.inputs(config))
  hidden = jax.jit(
      lambda *arguments: module.apply(
          {'params': params}, *arguments, method='blocks'
      )
  )(block[None, None], jnp.array([[make.ANCHOR]]), features[None])[0]
  np.testing.assert_allclose(hidden[0], golden['hidden'], rtol=0, atol=1e-4)
  if config.selector_rank is None:
    return
  unary, ids = selectors.candidates(logits[None], config.selector_top_k)
  scores = module.apply(
      {'params': params}, hidden[:, 1:], unary, ids, jnp.array([3]),
      lambda tokens: tokens, method='pair_scores',
  )
  np.testing.assert_array_equal(np.sort(ids[0]), golden['candidates'])
  path = walks.tokens(walks.greedy(scores), ids)
  assert path[0].tolist() == golden['path']
  assert golden['path'] != np.argmax(logits, axis=-1).tolist()
