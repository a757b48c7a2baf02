"""Everything from nothing: a tiny target, then its drafter. No download.

    python experiments/run.py --config=configs/tiny.py --workdir=runs/tiny

The target learns Python from the standard library's own sources; its drafter
is evaluated on functions of files that neither has seen.
"""

from configs import base


def get_config():
  """A 6-layer byte-level-BPE target of 1.8M parameters."""
  config = base.get_config()
  config.stages = ('pretrain', 'regenerate', 'train', 'evaluate')
  config.target = 'pretrained'
  config.drafter.num_layers = 2
  config.drafter.target_layer_ids = (1, 3, 5)
  config.regenerate.prompts = ('stdlib_train',)
  config.regenerate.num_prompts = (512,)
  config.regenerate.max_new_tokens = 96
  config.regenerate.batch_size = 64
  config.train.batch_size = 16
  config.train.num_anchors = 24
  config.train.num_steps = 300
  config.train.eval_every = 150
  config.train.save_every = 150
  config.train.learning_rate = 2e-3
  config.evaluate.prompts = ('stdlib_heldout',)
  config.evaluate.num_prompts = (40,)
  return config
