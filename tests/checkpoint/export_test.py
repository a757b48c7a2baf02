"""Fingerprints tell drafters apart, and nothing else."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import export
from tests import tiny

# The tiny model's context is 48, its vocabulary 64.
CONFIG = tiny.DRAFTERS['v2']


def fingerprint(params, config=CONFIG):
  return export.fingerprint(*tiny.target(), config, params)


def test_a_fingerprint_is_of_this_drafter_and_its_shape():
  _, params = tiny.drafter(CONFIG)
  ours = fingerprint(params)
  assert ours['block_ids'] == [ours['prompt_ids'][-1]] + [tiny.MASK] * 4
  assert np.shape(ours['top_ids']) == np.shape(ours['top_logits']) == (4, 8)
  assert export.compare(ours, ours) == 0
  near = jax.tree.map(lambda leaf: leaf * (1 + 1e-5), params)
  assert 0 < export.compare(fingerprint(near), ours) < 1e-2
  _, other = tiny.drafter(CONFIG, seed=2)
  with pytest.raises(errors.UserError, match='name different tokens'):
    theirs = fingerprint(other)
    # As if only the order differed: the logits are far apart in each.
    export.compare(ours, theirs | {'top_logits': ours['top_logits']})
  with pytest.raises(errors.UserError, match='different block_ids'):
    wide = dataclasses.replace(CONFIG, block_size=6)
    export.compare(ours, fingerprint(params, wide))


def test_command_lines_count_drafts_as_each_engine_does():
  lines = export.commands(pathlib.Path('my drafter'), 'some/target', CONFIG)
  assert '--speculative-num-draft-tokens 5' in lines['SGLang']
  assert "'my drafter'" in lines['SGLang']
  assert '"num_speculative_tokens": 4' in lines['vLLM']
  assert '--spec-draft-n-max 4' in lines['llama.cpp']
  # Assisted generation in transformers has no selector.
  assert not {'transformers', 'TensorRT-LLM'} & set(lines)
  v1 = export.commands(pathlib.Path('d'), 't', tiny.DRAFTER)
  assert "speculation_type='dflash'" in v1['transformers']
  assert '"max_draft_len": 4' in v1['TensorRT-LLM']
