"""Makes `drafters.json`: what the PyTorch reference computes for tiny drafters.

    python -m tests.golden.make

Needs the `parity` extra. The parameters come from NumPy's generator with a
fixed seed (`tests.tiny`), so that only inputs' seeds and outputs are stored.
"""

import json
import os
import pathlib
import tempfile

import numpy as np

from dflash_jax.checkpoint import drafter as checkpoint
from tests import tiny

PATH = pathlib.Path(__file__).with_name('drafters.json')
ANCHOR = 12


def inputs(config):
  """Features `[ANCHOR, P, D]`, block embeddings `[L, D]`, logits `[L-1, V]`."""
  rng = np.random.default_rng(5)
  return tuple(
      rng.normal(size=shape).astype(np.float32)
      for shape in (
          (ANCHOR, len(config.target_layer_ids), config.hidden_size),
          (config.block_size, config.hidden_size),
          (config.block_size - 1, config.vocab_size),
      )
  )


def main():
  os.environ['HF_HUB_OFFLINE'] = '1'
  import dflash.model as reference_lib  # pylint: disable=g-import-not-at-top
  import torch

  golden = {}
  for name, config in tiny.DRAFTERS.items():
    features, block, logits = inputs(config)
    with tempfile.TemporaryDirectory() as folder:
      checkpoint.save(f'{folder}/d', config, tiny.drafter(config)[1])
      kind = 'DFlash' if config.selector_rank is None else 'DFlash2'
      reference = getattr(reference_lib, f'{kind}DraftModel').from_pretrained(
          f'{folder}/d', dtype=torch.float32
      ).eval()
    with torch.no_grad():
      hidden = reference(
          target_hidden=torch.tensor(features).reshape(1, ANCHOR, -1),
          noise_embedding=torch.tensor(block)[None]
          * config.input_embedding_scale,
          position_ids=torch.arange(ANCHOR + len(block))[None],
      )
      golden[name] = {'hidden': hidden[0].double().numpy().round(5).tolist()}
      if config.selector_rank is not None:
        path, candidates, _ = reference.candidate_selector.select(
            hidden[:, 1:], torch.tensor(logits)[None], torch.tensor([3]), 0.0
        )
        golden[name] |= {
            'path': path[0].tolist(),
            'candidates': np.sort(candidates[0].numpy()).tolist(),
        }
  PATH.write_text(json.dumps(golden) + '\n')


if __name__ == '__main__':
  main()
