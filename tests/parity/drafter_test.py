"""The drafter, its files and greedy decoding against the PyPI reference.

The reference is the PyTorch package `dflash` 0.1.0, which loads the folder that
`checkpoint.drafter` saves.
"""

import dataclasses
import os
import time

import jax
import numpy as np
import pytest

from dflash_jax.checkpoint import drafter as checkpoint
from dflash_jax.decode import engine
from dflash_jax.decode import session
from dflash_jax.decode import state
from dflash_jax.nn import rotary
from dflash_jax.selector import module as selectors
from dflash_jax.selector import walks
from tests import tiny
from tests.parity import convert

os.environ['HF_HUB_OFFLINE'] = '1'
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
reference_lib = pytest.importorskip('dflash.model')
# Two threads on tiny matrices mostly wait for each other.
torch.set_num_threads(1)

_CASES = tiny.DRAFTERS | {
    'capped': dataclasses.replace(
        tiny.DRAFTER, output_multiplier=0.7, final_logit_softcapping=3.0
    ),
    'v2_capped': dataclasses.replace(
        tiny.DRAFTERS['v2'], layer_types=(tiny.SLIDING, tiny.FULL),
        sliding_window=4, output_multiplier=0.7, final_logit_softcapping=3.0,
    ),
    'scaled': dataclasses.replace(
        tiny.DRAFTER, rope_scaling=rotary.Llama3Scaling(8.0, 1.0, 4.0, 16)
    ),
}
_ROWS = 6


def _load(folder, config):
  """The reference's model from a folder that we saved, every weight found."""
  name = 'DFlash' if config.selector_rank is None else 'DFlash2'
  loaded, info = getattr(reference_lib, f'{name}DraftModel').from_pretrained(
      folder, dtype=torch.float32, output_loading_info=True
  )
  assert not any(info.values()), info
  return loaded.eval()


@pytest.fixture(name='pair', params=list(_CASES), scope='module')
def fixture_pair(request, tmp_path_factory):
  """Reference, our module, the parameters of both."""
  config = _CASES[request.param]
  module, params = tiny.drafter(config)
  folder = tmp_path_factory.mktemp('drafter') / request.param
  checkpoint.save(folder, config, params)
  return _load(folder, config), module, params


def _random(*shape, seed):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _reference(reference, block, features, start, cache=None):
  """Hidden states of one block behind features of the positions before it.

  Args:
    block: `[L, D]`, not yet scaled.
    features: `[C, P, D]`, of positions `start - C .. start - 1`.
    start: the anchor's position.
    cache: the reference's, or None if `features` is the whole context.
  """
  scale = reference_lib._draft_value(
      reference.config, 'input_embedding_scale', 1.0
  )
  count = len(features)
  with torch.no_grad():
    hidden = reference(
        target_hidden=torch.tensor(features).reshape(1, count, -1),
        noise_embedding=torch.tensor(block)[None] * scale,
        position_ids=torch.arange(start - count, start + len(block))[None],
        past_key_values=cache,
        use_cache=cache is not None,
    )
  return hidden[0].numpy()


def _close(ours, reference):
  np.testing.assert_allclose(ours, reference, rtol=0, atol=1e-4)


def test_cached_blocks(pair):
  """Two ragged rows: context comes in pieces, with a block after each."""
  reference, module, params = pair
  config, variables = module.config, {'params': params}
  taps, width = len(config.target_layer_ids), config.hidden_size
  # Rows of norm one, as trained heads about have: logits stay of order one.
  head = _random(config.vocab_size, width, seed=0) / np.float32(width**0.5)
  pieces = np.array([[6, 1, 4, 6, 2, 5], [2, 6, 1, 1, 5, 6]])
  features = _random(2, pieces.sum(1).max() + _ROWS, taps, width, seed=1)
  blocks = _random(len(pieces.T), 2, config.block_size, width, seed=2)

  @jax.jit
  def step(features, count, block, cache):
    cache = module.apply(variables, features, cache, method='inject')
    cache = cache.replace(length=cache.length + count)
    hidden, cache = module.apply(variables, block, cache)
    logits = module.apply(
        variables, hidden, lambda x: x @ head.T, method='logits'
    )
    return hidden, logits, cache

  cache = module.empty_cache(2, 40)
  theirs = [reference_lib._make_cache(reference.config) for _ in pieces]
  start = np.zeros(2, np.int32)
  for count, block in zip(pieces.T, blocks):
    # Rows past the count are of later positions: garbage to be overwritten.
    window = np.stack([f[s : s + _ROWS] for f, s in zip(features, start)])
    hidden, logits, cache = step(window, count, block, cache)
    for row in range(2):
      end = start[row] + count[row]
      expected = _reference(
          reference, block[row], window[row, : count[row]], end, theirs[row]
      )
      reference_lib._crop_to(theirs[row], end)
      _close(hidden[row], expected)
      whole = _reference(reference, block[row], features[row, :end], end)
      _close(hidden[row], whole)
      _close(logits[row], reference.compute_logits(
          torch.tensor(expected), lambda x: x @ torch.tensor(head).T
      ))
    start += count
  assert start.max() > 3 * (config.sliding_window or 0)


def test_training_blocks(pair):
  """Overlapping blocks at once, as in training, against one at a time."""
  reference, module, params = pair
  config = module.config
  width = config.hidden_size
  anchors = np.array([[1, 12, 14, 20]], np.int32)
  features = _random(1, 22, len(config.target_layer_ids), width, seed=3)
  blocks = _random(1, 4, config.block_size, width, seed=4)
  hidden = jax.jit(
      lambda *inputs: module.apply({'params': params}, *inputs, method='blocks')
  )(blocks, anchors, features)
  for index, anchor in enumerate(anchors[0]):
    expected = _reference(
        reference, blocks[0, index], features[0, :anchor], anchor
    )
    _close(hidden[0, index], expected)


def test_loads_what_the_reference_saves(pair, tmp_path):
  reference, module, params = pair
  reference.save_pretrained(tmp_path)
  config, loaded = checkpoint.load(tmp_path)
  assert config == module.config
  jax.tree.map(np.testing.assert_array_equal, loaded, params)


@pytest.mark.parametrize('name', ['v2', 'v2_capped'])
def test_the_selector_finds_the_same_candidates_and_path(name, tmp_path):
  config = _CASES[name]
  module, params = tiny.drafter(config)
  checkpoint.save(tmp_path / 'd', config, params)
  selector = _load(tmp_path / 'd', config).candidate_selector
  rows, slots = 50, config.block_size - 1
  hidden = _random(rows, slots, config.hidden_size, seed=5)
  logits = _random(rows, slots, config.vocab_size, seed=6)
  anchor = np.random.default_rng(7).integers(0, 64, rows).astype(np.int32)
  with torch.no_grad():
    path, candidates, _ = selector.select(
        *map(torch.tensor, (hidden, logits)), torch.tensor(anchor).long(), 0.0
    )

  @jax.jit
  def ours(hidden, logits, anchor):
    unary, ids = selectors.candidates(logits, config.selector_top_k)
    scores = module.apply(
        {'params': params}, hidden, unary, ids, anchor, lambda tokens: tokens,
        method='pair_scores',
    )
    return ids, scores, walks.tokens(walks.greedy(scores), ids)

  ids, scores, found = ours(hidden, logits, anchor)
  np.testing.assert_array_equal(
      np.sort(ids, axis=-1), np.sort(candidates.numpy(), axis=-1)
  )
  np.testing.assert_array_equal(found, path.numpy())
  # The pair term did decide something.
  assert (found != logits.argmax(axis=-1)).any()
  for slot in range(1, slots):
    with torch.no_grad():
      before, after = (
          torch.tensor(np.asarray(ids[:, s])).long() for s in (slot - 1, slot)
      )
      gated = selector.predecessor_codebook(before) * selector.hidden_projection(
          torch.tensor(hidden[:, slot])
      )[:, None]
      pairs = gated @ selector.successor_codebook(after).transpose(1, 2)
    unary = np.take_along_axis(logits[:, slot], np.asarray(ids[:, slot]), -1)
    _close(scores[:, slot], unary[:, None] + pairs.numpy())


# The reference was written for transformers 5.15.
@pytest.mark.filterwarnings('ignore:`past_key_values` is deprecated')
# Seeds with which every accepted length occurs.
@pytest.mark.parametrize('name, stop_ids, seed', [
    ('full', (), 4), ('mixed', (3,), 4), ('v2', (), 5), ('v2_capped', (), 5),
])
def test_greedy_generation(name, stop_ids, seed, tmp_path, monkeypatch):
  """Tokens and rounds of ragged prompts; few token ids, so drafts do hold."""
  vocabulary = 4
  torch.manual_seed(1)
  theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
      vocab_size=vocabulary, hidden_size=32, num_hidden_layers=4,
      num_attention_heads=4, num_key_value_heads=2, head_dim=8,
      intermediate_size=48, max_position_embeddings=128,
      tie_word_embeddings=False, initializer_range=0.3,
  )).eval()
  target, target_params = convert.target(theirs, tmp_path / 'target')
  # The reference taps the last block behind the final norm, so not that one.
  config = _CASES[name]
  drafter, params = tiny.drafter(dataclasses.replace(
      config, vocab_size=vocabulary, mask_token_id=vocabulary - 1,
      target_layer_ids=(2, 0),
      selector_top_k=config.selector_top_k and vocabulary - 1,
  ), seed)
  checkpoint.save(tmp_path / 'drafter', drafter.config, params)
  reference = _load(tmp_path / 'drafter', drafter.config)
  block_size = drafter.config.block_size
  ours = session.Session(
      engine.Engine(target, drafter, block_size, stop_ids),
      state.Params(target_params, params),
  )
  rng = np.random.default_rng(7)
  prompts = [
      rng.integers(vocabulary, size=length).tolist() for length in range(1, 21)
  ]
  monkeypatch.setattr(reference_lib, '_cuda_time', time.perf_counter)
  completions = ours.generate(prompts, 32)
  for prompt, completion in zip(prompts, completions):
    expected = reference_lib.dflash_generate(
        reference, theirs, torch.tensor([prompt]), 32, list(stop_ids),
        return_stats=True,
    )
    whole = expected.output_ids
    assert completion.tokens == whole[0, len(prompt) :].tolist()
    with torch.no_grad():
      best = theirs(whole).logits.argmax(dim=-1)
    assert best[0, len(prompt) - 1 : -1].tolist() == completion.tokens
    # Near the budget the reference drafts narrower blocks, hence others.
    rounds, room = [], 31
    for produced in expected.acceptance_lengths:
      if room + 1 >= block_size:
        rounds.append(produced)
      room -= produced
    assert completion.produced[: len(rounds)] == rounds
  accepted = {a for completion in completions for a in completion.accepted}
  assert accepted == set(range(block_size))
  # A 3 is met inside an accepted block.
  cut = [
      c for c in completions
      if c.finished and c.accepted and c.accepted[-1] >= c.produced[-1]
  ]
  assert bool(cut) == bool(stop_ids)
