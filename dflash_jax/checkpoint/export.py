"""What an exported drafter takes along: a fingerprint, and how to serve it."""

from collections.abc import Mapping
import json
import pathlib
import shlex
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax import errors
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import model
from dflash_jax.target import decoder

_PROMPT_TOKENS = 12
_TOP = 8
TRANSFORMERS_NAMES = {
    '^fc': 'encoder.fc', '^hidden_norm': 'encoder.output_norm_enc'
}


def fingerprint(
    target: decoder.Decoder,
    target_params: Any,
    config: drafter_config.DrafterConfig,
    params: Any,
) -> dict[str, Any]:
  """Logits of one block behind a fixed prompt, for other engines to compare.

  Args:
    target: the target.
    target_params: its parameters.
    config: of the drafter.
    params: of the drafter.

  Returns:
    `prompt_ids`, of which the last is the anchor; `block_ids`; and of each
    drafted slot `top_ids` and `top_logits`, the eight best after multiplier and
    soft cap, in float32.
  """
  size = config.vocab_size
  prompt = [(7 * i + 3) % min(size, 1000) for i in range(_PROMPT_TOKENS)]
  block = [prompt[-1]] + [config.mask_token_id] * (config.block_size - 1)
  drafter = model.Drafter(config)

  @jax.jit
  def logits_of(target_params, params):
    bound, draft = target.bind({'params': target_params}), {'params': params}
    _, features, _ = bound(
        jnp.asarray([prompt]), taps=config.target_layer_ids
    )
    hidden = drafter.apply(
        draft, bound.embed(jnp.asarray([[block]])),
        jnp.asarray([[_PROMPT_TOKENS - 1]]), features, method='blocks',
    )
    return drafter.apply(draft, hidden[0, 0, 1:], bound.head, method='logits')

  values, ids = jax.lax.top_k(logits_of(target_params, params), _TOP)
  return {
      'prompt_ids': prompt,
      'block_ids': block,
      'top_ids': np.asarray(ids).tolist(),
      'top_logits': np.asarray(values, np.float64).round(6).tolist(),
  }


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
  """The largest difference between the logits of two fingerprints.

  Raises:
    errors.UserError: they are of different prompts or blocks, or order the
      tokens differently where the logits are apart.
  """
  for key in ('prompt_ids', 'block_ids'):
    if ours[key] != theirs[key]:
      raise errors.UserError(
          f'the fingerprints have different {key}; they are of drafters with'
          ' another vocabulary, mask token or block size'
      )
  values = [np.array(f['top_logits']) for f in (ours, theirs)]
  difference = float(np.abs(values[0] - values[1]).max())
  ids = [np.array(f['top_ids']) for f in (ours, theirs)]
  apart = values[0][:, :-1] - values[0][:, 1:] > 2 * difference
  # A token's place is certain when both its neighbours are far.
  certain = np.pad(apart, ((0, 0), (1, 0)), constant_values=True)
  certain &= np.pad(apart, ((0, 0), (0, 1)), constant_values=False)
  if (certain & (ids[0] != ids[1])).any():
    raise errors.UserError(
        'the fingerprints name different tokens: the drafters are not the same'
    )
  return difference


def commands(
    folder: pathlib.Path, target: str, config: drafter_config.DrafterConfig
) -> dict[str, str]:
  """How each engine serves the drafter, as command lines.

  Args:
    folder: of the exported drafter.
    target: the target's path or hub id, as the engine should load it.
    config: of the drafter.
  """
  drafted = config.block_size - 1
  draft, served = shlex.quote(str(folder)), shlex.quote(target)
  speculative = shlex.quote(json.dumps({
      'method': 'dflash', 'model': str(folder),
      'num_speculative_tokens': drafted,
  }))
  lines = {
      'SGLang':
          f'python -m sglang.launch_server --model-path {served}'
          ' --speculative-algorithm DFLASH'
          f' --speculative-draft-model-path {draft}'
          f' --speculative-num-draft-tokens {config.block_size}',
      'vLLM': f'vllm serve {served} --speculative-config {speculative}',
      'llama.cpp':
          f'python convert_hf_to_gguf.py {draft} --target-model-dir {served}'
          ' --outfile drafter.gguf && llama-server -m target.gguf -md'
          f' drafter.gguf --spec-type draft-dflash --spec-draft-n-max {drafted}',
  }
  if _is_plain(config):
    settings = json.dumps({'speculative_config': {
        'decoding_type': 'DFlash', 'max_draft_len': drafted,
        'speculative_model': str(folder),
    }})
    lines['TensorRT-LLM'] = (
        f'echo {shlex.quote(settings)} > dflash.yaml && trtllm-serve {served}'
        ' --extra_llm_api_options dflash.yaml'
    )
    # Its one drafter class has other names for two modules, and reads these two
    # keys on top.
    lines['transformers'] = (
        f'drafter = MuseGlimmerAssistantModel.from_pretrained({str(folder)!r},'
        f' key_mapping={TRANSFORMERS_NAMES},'
        f' mask_token_id={config.mask_token_id},'
        f' target_layer_ids={list(config.target_layer_ids)});'
        ' target.generate(ids, assistant_model=drafter,'
        " speculation_type='dflash')"
    )
  return lines


def _is_plain(config: drafter_config.DrafterConfig) -> bool:
  """Whether it is all that transformers and TensorRT-LLM compute."""
  return (
      config.selector_rank is None
      and config.conv_kernel_size is None
      and not any(map(config.causal, range(config.num_layers)))
      and config.output_multiplier == config.input_embedding_scale == 1
      and config.final_logit_softcapping is None
  )
