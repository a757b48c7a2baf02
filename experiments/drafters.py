"""The stages about a drafter's files: export, and the passport."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.checkpoint import drafter as drafter_files
from dflash_jax.checkpoint import export as exports
from dflash_jax.drafter import codebooks
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import model as drafter_model
from dflash_jax.evaluate import metrics
from experiments import workspace

_DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


def export(run: workspace.Workspace) -> None:
  """Writes the drafter for other engines, reads it again, compares."""
  target, drafter, settings = run.target, run.drafter, run.config.export
  if settings.dtype not in _DTYPES:
    raise errors.UserError(
        f'config.export.dtype is {settings.dtype!r}; choose from'
        f' {list(_DTYPES)} (drafters overflow float16)'
    )
  config, params = codebooks.multiply_out(
      drafter.module.config, drafter.params, target.params['embedding']
  )
  folder = pathlib.Path(settings.path or run.folder / 'export')
  if folder.resolve() == drafter.path.resolve():
    raise errors.UserError(
        f'{folder}: is the drafter to export; give another config.export.path'
    )
  before = exports.fingerprint(target.module, target.params, config, params)
  dtype = _DTYPES[settings.dtype]
  drafter_files.save(
      folder, config, jax.tree.map(lambda leaf: leaf.astype(dtype), params)
  )
  again, stored = drafter_files.load(folder)
  if again != config:
    raise errors.UserError(
        f'{folder}: config.json reads back as another configuration; please'
        ' report this'
    )
  after = exports.fingerprint(target.module, target.params, again, stored)
  difference = exports.compare(after, before)
  if dtype == jnp.float32 and difference > 1e-4:
    raise errors.UserError(
        f'{folder}: the drafter reads back with other logits (by {difference});'
        ' please report this'
    )
  files.atomic_write(
      folder / 'fingerprint.json', json.dumps(after, indent=2) + '\n'
  )
  print(
      f'  {folder}: {settings.dtype}, read again, logits within'
      f' {difference:.2g} of the drafter in memory; fingerprint.json has some'
  )
  name = settings.target_name or run.config.target
  for engine, line in exports.commands(folder, name, config).items():
    print(f'  {engine}:\n    {line}')


def passport(run: workspace.Workspace) -> None:
  """Prints what a drafter is; with prompts, whether its taps fit."""
  drafter, settings = run.drafter_file, run.config.passport
  config = drafter.module.config
  for name, value in describe(config).items():
    print(f'  {name + ":":18} {value}')
  for name, count in _sizes(drafter.params).items():
    print(f'  {name + " parameters:":24} {count:,}')
  if settings.num_prompts:
    taus = _shifted_taus(run, run.drafter, settings)
    best = max(taus, key=taus.get)
    for shift, tau in taus.items():
      print(f'  taps {shift:+d}: tau {tau:.2f}')
    print(
        '  taps fit the target' if best == 0 else
        f'  taps shifted by {best:+d} accept more: the file most likely counts'
        ' layers in another way'
    )


def describe(config: drafter_config.DrafterConfig) -> dict[str, str]:
  """The configuration in words."""
  window = config.sliding_window
  layers = ', '.join(
      ('sliding' if config.window(i) else 'full')
      + (' causal' if config.causal(i) else ' non-causal')
      for i in range(config.num_layers)
  )
  out = {
      'method': 'DFlash' if config.selector_rank is None else 'DFlash 2',
      'layers': f'{config.num_layers} ({layers})',
      'window': str(window) if window else 'none',
      'block': f'{config.block_size} ({config.block_size - 1} drafted)',
      'taps': f'{list(config.target_layer_ids)} of'
      f' {config.num_target_layers or "an unnamed number of"} target blocks,'
      ' zero-based, output of the block',
      'mask id': str(config.mask_token_id),
      'rope': f'rotate-half, theta {config.rope_theta:g}'
      + (f', {config.rope_scaling}' if config.rope_scaling else ''),
      'heads': f'{config.num_heads} query, {config.num_kv_heads} key-value, of'
      f' width {config.head_dim}',
      'widths': f'model {config.hidden_size}, MLP {config.intermediate_size},'
      f' vocabulary {config.vocab_size}',
      'logits': f'times {config.output_multiplier:g}, soft cap'
      f' {config.final_logit_softcapping}',
  }
  if config.draft_vocab_size is not None:
    out['head'] = f'its own, over {config.draft_vocab_size} tokens'
  if config.conv_kernel_size is not None:
    out['convolutions'] = (
        f'{config.conv_kernel_size} taps, groups of {config.conv_group_size}'
    )
  if config.selector_rank is not None:
    kind = 'projected' if config.selector_projected else 'free'
    out['selector'] = (
        f'{config.selector_top_k} candidates, rank {config.selector_rank},'
        f' {kind} codebooks'
    )
  return out


def _sizes(params) -> dict[str, int]:
  sizes: dict[str, int] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    keys = [part.key for part in path]
    part = 'layers' if keys[0].startswith('layers_') else keys[0]
    if len(keys) > 1 and keys[1].endswith('_conv'):
      part = 'convolution'
    sizes[part] = sizes.get(part, 0) + leaf.size
  return sizes | {'all': sum(sizes.values())}


def _shifted_taus(run, drafter, settings) -> dict[int, float]:
  """Mean tau with the taps as they are and one block to either side."""
  config = drafter.module.config
  prompts = [
      run.encode(prompt)
      for prompt in run.prompts((settings.prompts,), (settings.num_prompts,))
  ]
  taus = {}
  for shift in (-1, 0, 1):
    taps = tuple(tap + shift for tap in config.target_layer_ids)
    if min(taps) < 0 or max(taps) >= config.num_target_layers:
      continue
    module = drafter_model.Drafter(
        dataclasses.replace(config, target_layer_ids=taps)
    )
    completions = run.speculative(module, drafter.params).generate(
        prompts, settings.max_new_tokens
    )
    taus[shift] = metrics.mean_tau([c.produced for c in completions]) or 1.0
  return taus
