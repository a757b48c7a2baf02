"""The stages of a run. Each one reads and leaves files in the workdir."""

import hashlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from dflash_jax import errors
from dflash_jax.checkpoint import drafter as drafter_files
from dflash_jax.checkpoint import orbax
from dflash_jax.data import batches
from dflash_jax.data import bpe
from dflash_jax.data import corpus
from dflash_jax.data import detokenizer
from dflash_jax.data import prompts as prompt_sources
from dflash_jax.data import regenerate as regeneration
from dflash_jax.data import stdlib
from dflash_jax.data import stdlib_prompts
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model as drafter_model
from dflash_jax.evaluate import metrics
from dflash_jax.target import decoder
from dflash_jax.train import features as feature_cache
from dflash_jax.train import loop
from dflash_jax.train import pretrain as pretraining
from dflash_jax.train import trainer as training
from experiments import evaluation
from experiments import workspace


def pretrain(run: workspace.Workspace) -> None:
  """Trains a tiny target on the standard library: `target/`."""
  config, folder = run.config.pretrain, run.folder / 'target'
  params = orbax.Checkpoints(folder / 'params')
  if params.latest_step() == config.num_steps:
    print(f'  {folder}: trained already')
    return
  sources, _ = stdlib.split(stdlib.sources(), stdlib_prompts.HELDOUT_FRACTION)
  texts = [text for _, text in sources]
  tokenizer = bpe.train_bpe(texts, config.vocab_size)
  end = tokenizer.eos_ids[0]
  stream = np.array(
      [token for text in texts for token in (*tokenizer.encode(text), end)],
      np.int32,
  )
  pretrainer = pretraining.Pretrainer(
      decoder.Decoder(run.pretrained_config(tokenizer.vocab_size)),
      training.adamw(config.learning_rate, config.num_steps),
  )
  _banner(
      target=f'{config.num_layers} layers of width {config.hidden_size}, from'
      ' scratch',
      text=f'{len(texts)} standard-library files, {len(stream)} tokens',
  )
  state = loop.run(
      jax.jit(pretrainer.step, donate_argnums=0),
      pretrainer.init(jax.random.key(run.config.seed)),
      lambda step: pretraining.crops(
          stream, step, config.batch_size, config.length + 1, run.config.seed
      ),
      num_steps=config.num_steps,
      seed=run.config.seed,
      checkpoints=orbax.Checkpoints(folder / 'checkpoints'),
      save_every=run.config.train.save_every,
      log=loop.MetricsLog(folder / 'metrics.jsonl'),
      log_every=run.config.train.log_every,
      evaluate=None,
      eval_every=config.num_steps,
      label='pretrain',
  )
  tokenizer.save(folder / 'tokenizer.json')
  params.save(config.num_steps, state.params)


def regenerate(run: workspace.Workspace) -> None:
  """Lets the target answer the training prompts: `corpus/`."""
  config, target = run.config.regenerate, run.target
  prompts = run.prompts(config.prompts, config.num_prompts)
  encoded = [(p.id, run.encode(p)) for p in prompts]
  kept = [
      (name, ids) for name, ids in encoded
      if len(ids) <= config.max_prompt_tokens
  ]
  template = target.tokenizer.chat_template or ''
  _banner(
      target=f'{target.name} (sha256 {target.sha256[:12]})',
      path='autoregressive, block 1, greedy, batch'
      f' {config.batch_size}, float32 on {workspace.device()}',
      prompts=f'{len(kept)} of {", ".join(config.prompts)};'
      f' {len(encoded) - len(kept)} longer than {config.max_prompt_tokens}'
      ' tokens left out',
  )

  def generate(batch):
    # The last batch may be short; a full one needs no other program.
    padded = batch + [batch[0]] * (config.batch_size - len(batch))
    completions = run.autoregressive.generate(padded, config.max_new_tokens)
    return [(c.tokens, c.finished) for c in completions[: len(batch)]]

  began = time.perf_counter()
  with tqdm.tqdm(total=len(kept), desc='regenerate', unit='prompt') as bar:
    manifest = regeneration.regenerate(
        kept,
        generate,
        run.folder / 'corpus',
        batch_size=config.batch_size,
        manifest={
            'target': target.name,
            'target_sha256': target.sha256,
            'template_sha256': hashlib.sha256(template.encode()).hexdigest(),
            'template_switches': run.config.template.to_dict(),
            'sampling': {'temperature': 0.0},
            'prompt_sources': list(config.prompts),
            'max_new_tokens': config.max_new_tokens,
            'stop_ids': list(target.tokenizer.eos_ids),
        },
        progress=lambda done, total: bar.update(done - bar.n),
    )
  print(
      f'{manifest["num_examples"]} examples,'
      f' {manifest["num_response_tokens"]} response tokens,'
      f' {manifest["num_finished"]} ended by themselves;'
      f' {time.perf_counter() - began:.0f} s'
  )


def train(run: workspace.Workspace) -> None:
  """Trains a drafter on the corpus: `drafter/`, `checkpoints/`, metrics."""
  config, target = run.config.train, run.target
  if 'evaluate' in run.config.stages:
    evaluation.prompts_of(run)  # A prompt that does not fit fails here, early.
  examples, manifest = corpus.read(run.folder / 'corpus')
  if manifest['target_sha256'] != target.sha256:
    raise errors.UserError(
        f'{run.folder / "corpus"}: answered by {manifest["target"]}, not by'
        f' {target.name}; use another --workdir, or that target'
    )
  if not 0 < config.eval_prompts < len(examples):
    raise errors.UserError(
        f'config.train.eval_prompts is {config.eval_prompts}; it must be at'
        f' least 1, and fewer than the {len(examples)} examples of the corpus'
    )
  heldout = examples[:: len(examples) // config.eval_prompts]
  heldout = heldout[: config.eval_prompts]
  names = {example.id for example in heldout}
  rest = [example for example in examples if example.id not in names]
  longest = max(len(e.prompt) + len(e.response) for e in rest)
  dataset = batches.pack(rest, longest, target.tokenizer.pad_id)
  drafter = drafter_model.Drafter(run.new_drafter_config())
  trainer = training.Trainer(
      target=target.module,
      drafter=drafter,
      optimizer=training.adamw(config.learning_rate, config.num_steps),
      num_anchors=config.num_anchors,
      loss_decay_gamma=config.loss_decay_gamma,
      loss=config.loss,
  )
  _banner(
      target=f'{target.name} (sha256 {target.sha256[:12]})',
      drafter=_describe(drafter) + f', from {run.config.drafter.init}',
      corpus=f'{len(rest)} examples, {dataset.num_response_tokens} response'
      f' tokens; {len(heldout)} held out',
      path=f'{config.loss} labels, {config.batch_size} x {config.num_anchors}'
      ' anchors a step, features'
      f' {"cached" if config.cache_features else "computed in the step"},'
      f' float32 on {workspace.device()}',
  )
  cache = None
  if config.cache_features:
    cache = feature_cache.compute(trainer, target.params, dataset)
  jitted = jax.jit(trainer.step, donate_argnums=1)

  def make_batch(index: int) -> training.Batch:
    rows = batches.batch_indices(
        index, len(dataset.tokens), config.batch_size, run.config.seed
    )
    return feature_cache.batch(dataset, rows, cache)

  # Placed on the device for good, as a restored state is: jit would compile
  # again for the difference after the first step.
  state = jax.device_put(
      trainer.init(_initial_params(run, drafter, dataset)), jax.devices()[0]
  )
  session = run.speculative(drafter, state.params)

  def evaluate(state: training.TrainState) -> dict[str, float]:
    session.params = session.params.replace(drafter=state.params)
    completions = session.generate([e.prompt for e in heldout], 64)
    rounds = [completion.produced for completion in completions]
    return {'tau': metrics.mean_tau(rounds)}

  state = loop.run(
      lambda *arguments: jitted(target.params, *arguments),
      state,
      make_batch,
      num_steps=config.num_steps,
      seed=run.config.seed,
      checkpoints=orbax.Checkpoints(run.folder / 'checkpoints'),
      save_every=config.save_every,
      log=loop.MetricsLog(run.folder / 'metrics.jsonl'),
      log_every=config.log_every,
      evaluate=evaluate,
      eval_every=config.eval_every,
      label='train',
  )
  drafter_files.save(run.folder / 'drafter', drafter.config, state.params)
  print(f'drafter written to {run.folder / "drafter"}')


def evaluate(run: workspace.Workspace) -> None:
  """Decodes the evaluation prompts both ways: summary, plots, report."""
  target, drafter = run.target, run.drafter
  _banner(
      target=f'{target.name} (sha256 {target.sha256[:12]})',
      drafter=f'{_describe(drafter.module)}, from {drafter.path}',
      path='speculative and autoregressive (block 1) in turn, greedy, batch'
      f' {run.config.evaluate.batch_size}, float32 on {workspace.device()}',
  )
  evaluation.evaluate(run)


def generate(run: workspace.Workspace) -> None:
  """Streams the answer to one prompt."""
  config, target, drafter = run.config.generate, run.target, run.drafter
  sampler, asked = run.sampling()
  how = 'greedy' if sampler is None else (
      f'temperature {asked.temperature}, {run.config.sampling.rule} acceptance,'
      f' seed {asked.seed}'
  )
  _banner(
      target=f'{target.name} (sha256 {target.sha256[:12]})',
      drafter=f'{_describe(drafter.module)}, from {drafter.path}',
      path=f'speculative, {how}, float32 on {workspace.device()}',
  )
  if target.tokenizer.chat_template is None:
    prompt = prompt_sources.Prompt('prompt', text=config.prompt)
  else:
    message = {'role': 'user', 'content': config.prompt}
    prompt = prompt_sources.Prompt('prompt', (message,))
  session = run.speculative(drafter.module, drafter.params, sampler)
  text = detokenizer.Detokenizer(target.tokenizer)
  pieces = session.stream(
      run.encode(prompt), config.max_new_tokens, asked
  )
  produced = []
  for tokens in pieces:
    produced.append(len(tokens))
    shown = [t for t in tokens if t not in target.tokenizer.eos_ids]
    sys.stdout.write(text.push(shown))
    sys.stdout.flush()
  print(text.flush())
  rounds = len(produced) - 1
  tau = sum(produced[1:]) / rounds if rounds else 0.0
  print(f'[{sum(produced)} tokens in {rounds} rounds, tau {tau:.2f}]')


def _initial_params(run, drafter, dataset):
  kind, key = run.config.drafter.init, jax.random.key(run.config.seed)
  if kind == 'target':
    return initialize.from_target(
        drafter.config, run.target.module, run.target.params,
        jnp.asarray(dataset.tokens[:4]), key,
    )
  if kind == 'scratch':
    return initialize.from_scratch(drafter.config, key)
  raise errors.UserError(
      f"config.drafter.init is {kind!r}; choose 'target' or 'scratch'"
  )


def _describe(drafter: drafter_model.Drafter) -> str:
  config = drafter.config
  return (
      f'DFlash, {config.num_layers} layers, block {config.block_size}'
      f' ({config.block_size - 1} drafted), taps'
      f' {list(config.target_layer_ids)}, mask id {config.mask_token_id}'
  )


def _banner(**lines: str) -> None:
  for name, line in lines.items():
    print(f'  {name + ":":9} {line}', flush=True)
