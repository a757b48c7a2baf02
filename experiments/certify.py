"""The certify stage: is what this pair emits the target's, and how do we know.

Writes `certificate.json` into the workdir, with every statistic, seed and
version; what was not tested is named in it.
"""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.decode import propose
from dflash_jax.decode import sampling as samplings
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model as drafter_model
from dflash_jax.evaluate import analysis
from dflash_jax.evaluate import exact_law
from dflash_jax.evaluate import lossless
from dflash_jax.evaluate import real_draws
from dflash_jax.target import decoder
from dflash_jax.verifier import rules
from experiments import workspace

# Of the copy on which everything is tried: as large as can be.
_VOCABULARY, _TOKENS, _BLOCK = 5, 3, 3
# What the exact part may be off by: rounding of float32.
_EXACT = 1e-6
# A law that holds is rejected once in so many tests.
_SIGNIFICANCE = 1e-3


def certify(run: workspace.Workspace) -> None:
  """Runs all parts.

  Raises:
    errors.UserError: a part failed; the certificate is written first.
  """
  config = run.config.certify
  laws = [_parse(text) for text in config.laws]
  parts = {
      'exact': _exact(run),
      'draws': _draws(run, laws) if config.num_draws else None,
      'coupled': _coupled(run, laws) if any(config.num_prompts) else None,
      'greedy': _greedy(run) if any(config.num_prompts) else None,
  }
  missing = [name for name, part in parts.items() if part is None]
  failed = [
      name for name, part in parts.items() if part and not part['passed']
  ]
  certificate = {
      'passed': not failed and not missing,
      'failed': failed,
      'not_tested': missing,
      'target': run.target.name,
      'target_sha256': run.target.sha256,
      'drafter': str(run.drafter.path),
      'seed': run.config.seed,
      **parts,
      'versions': workspace.versions(),
      'device': workspace.device(),
  }
  path = run.folder / 'certificate.json'
  files.atomic_write(path, json.dumps(certificate, indent=2) + '\n')
  for name, part in parts.items():
    verdict = 'not tested' if part is None else (
        'passed' if part['passed'] else 'FAILED'
    )
    print(f'  {name + ":":9} {verdict}{_summary(name, part)}')
  print(f'  {path}')
  if failed:
    raise errors.UserError(
        f'{path}: {", ".join(failed)} failed: the output is not the target\'s;'
        ' this is a bug, please report it with that file'
    )


def _summary(name, part):
  if part is None:
    return ''
  if name == 'exact':
    return (
        f', total variation at most {part["worst_total_variation"]:.1e} over'
        f' {len(part["cases"])} cases'
    )
  if name == 'draws':
    lowest = min(
        fit['p_value'] for case in part['cases'] for fit in case['fits'].values()
    )
    return (
        f', lowest p-value {lowest:.3g} of {2 * len(part["cases"])} tests with'
        f' {part["num_draws"]} draws each'
    )
  if name == 'coupled':
    return f', {part["num_tokens"]} tokens equal to autoregressive sampling'
  return f', {part["num_tokens"]} tokens, {part["near_ties"]} near-ties'


def _parse(text: str) -> samplings.Sampling:
  """`temperature=0.7,top_p=0.9` as settings of a request."""
  fields = {f.name: f.type for f in dataclasses.fields(samplings.Sampling)}
  settings = {}
  for item in text.split(','):
    name, _, value = item.partition('=')
    try:
      settings[name.strip()] = fields[name.strip()](value)
    except (KeyError, ValueError) as error:
      raise errors.UserError(
          f'config.certify.laws: {text!r} is not a list of settings such as'
          f' temperature=0.7,top_p=0.9 ({error})'
      ) from error
  return samplings.Sampling(**settings)


def _settings(sampling):
  return samplings.requests([sampling]).law


def _exact(run) -> dict:
  """Every rule on a pair of five tokens, shaped like the real one."""
  target = run.target.module.config
  drafter = run.drafter.module.config
  v2 = drafter.selector_rank is not None
  small_target = dataclasses.replace(
      target, vocab_size=_VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
      num_kv_heads=2, head_dim=8, intermediate_size=48,
  )
  small = dataclasses.replace(
      drafter, vocab_size=_VOCABULARY, hidden_size=32, num_layers=2,
      num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
      layer_types=drafter.layer_types[:1] * 2, block_size=_BLOCK,
      mask_token_id=_VOCABULARY - 1, target_layer_ids=(0, 1),
      num_target_layers=2, draft_vocab_size=None,
      conv_group_size=drafter.conv_group_size and 8,
      selector_rank=drafter.selector_rank and 4,
      selector_top_k=drafter.selector_top_k and 3,
  )
  keys = jax.random.split(jax.random.key(run.config.seed), 3)

  def random(params, key):
    """Far from even: every weight matters."""
    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [
        leaf + 0.4 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, jax.random.split(key, len(leaves)))
    ])

  module = decoder.Decoder(small_target)
  params = module.init(keys[0], jnp.zeros((1, 1), jnp.int32))['params']
  pair = exact_law.Pair(
      module, random(params, keys[1]), drafter_model.Drafter(small),
      random(initialize.from_scratch(small, keys[2]), keys[2]),
      [1, 3, 0], _TOKENS,
  )
  cases = []
  settings = [
      samplings.Sampling(temperature=t, top_k=k, top_p=p, min_p=m)
      for t, k, p, m in itertools.product(
          (0.5, 1.0, 2.0), (0, 3), (0.8, 1.0), (0.0, 0.3)
      )
  ]
  for rule, draws in itertools.product(
      (rules.rejection, rules.block), (True, False)
  ):
    for sampling in settings:
      law = _settings(sampling)
      distance = np.abs(
          pair.output_law(law, propose.Sampler(rule, draws))
          - pair.target_law(law)
      ).sum() / 2
      cases.append({
          'rule': rule.__name__, 'drafts': 'drawn' if draws else 'best',
          'law': _describe(sampling), 'total_variation': float(distance),
      })
  worst = max(case['total_variation'] for case in cases)
  return {
      'passed': worst < _EXACT,
      'worst_total_variation': worst,
      'vocabulary': _VOCABULARY, 'tokens': _TOKENS,
      'drafter': 'DFlash 2' if v2 else 'DFlash',
      'note': 'coupled sampling casts the same dice as autoregressive sampling;'
      ' see the part of that name',
      'cases': cases,
  }


def _draws(run, laws) -> dict:
  """Chi-square of the real pair's rounds behind one real text."""
  config = run.config.certify
  (prompt,) = run.prompts(config.prompts[:1], (1,))
  text = run.encode(prompt)
  (answer,) = run.autoregressive.generate([text], 4)
  rounds = real_draws.Rounds(
      run.target.module, run.target.params, run.drafter.module,
      run.drafter.params, text + answer.tokens,
  )
  tried = (rules.rejection, rules.block)
  cases = []
  for sampling in tqdm.tqdm(laws, desc='draws', unit='law'):
    fits_of_rules = rounds.test(
        _settings(sampling), [propose.Sampler(rule, True) for rule in tried],
        config.num_draws, run.config.seed,
    )
    for rule, fits in zip(tried, fits_of_rules):
      cases.append({
          'rule': rule.__name__, 'law': _describe(sampling),
          'fits': {name: fit._asdict() for name, fit in fits.items()},
      })
  tests = 2 * len(cases)
  return {
      'passed': all(
          fit['p_value'] > _SIGNIFICANCE
          for case in cases for fit in case['fits'].values()
      ),
      'num_draws': config.num_draws,
      'prompt': prompt.id,
      'note': f'a law that holds fails one of {tests} tests once in'
      f' {round(1 / (_SIGNIFICANCE * tests))} certificates',
      'cases': cases,
  }


def _coupled(run, laws) -> dict:
  """Speculative and autoregressive sampling with the same noise."""
  config = run.config.certify
  prompts = [
      run.encode(prompt)
      for prompt in run.prompts(config.prompts, config.num_prompts)
  ]
  sampler = propose.Sampler(rules.coupled, True)
  sessions = (
      run.autoregressive_with(sampler),
      run.speculative(run.drafter.module, run.drafter.params, sampler),
  )
  different, count = [], 0
  for sampling in laws:
    for start in range(0, len(prompts), config.batch_size):
      batch = prompts[start : start + config.batch_size]
      asked = [
          dataclasses.replace(sampling, seed=run.config.seed, request=start + i)
          for i in range(len(batch))
      ]
      plain, ours = (
          [c.tokens for c in s.generate(batch, config.max_new_tokens, asked)]
          for s in sessions
      )
      for index, (one, other) in enumerate(zip(ours, plain), start):
        count += len(one)
        where = lossless.first_difference(one, other)
        if where is not None:
          different.append({
              'law': _describe(sampling), 'prompt': index, 'token': where
          })
  return {
      'passed': not different, 'num_tokens': count,
      'num_prompts': len(prompts), 'laws': list(map(_describe, laws)),
      'different': different,
  }


def _greedy(run) -> dict:
  """Each token is the argmax of a teacher-forced pass, or nearly so."""
  config = run.config.certify
  loaded = run.prompts(config.prompts, config.num_prompts)
  prompts = [run.encode(prompt) for prompt in loaded]
  ours, plain = [], []
  for session, tokens in (
      (run.speculative(run.drafter.module, run.drafter.params), ours),
      (run.autoregressive, plain),
  ):
    for start in range(0, len(prompts), config.batch_size):
      tokens += [
          c.tokens for c in session.generate(
              prompts[start : start + config.batch_size], config.max_new_tokens
          )
      ]
  teacher = analysis.Teacher(run.target.module, run.target.params)
  margins, plain_margins = (
      [teacher.margins(p, t) for p, t in zip(prompts, texts)]
      for texts in (ours, plain)
  )
  verdict = lossless.judge(
      [prompt.id for prompt in loaded], ours, plain, margins, plain_margins
  )
  return {
      'passed': verdict.lossless, 'identical': ours == plain,
      'near_ties': verdict.near_ties, 'margin': analysis.NEAR_TIE,
      'num_tokens': sum(map(len, ours)), 'failures': verdict.failures,
  }


def _describe(sampling: samplings.Sampling) -> str:
  default = samplings.Sampling()
  changed = {
      field.name: getattr(sampling, field.name)
      for field in dataclasses.fields(sampling)
      if getattr(sampling, field.name) != getattr(default, field.name)
  }
  return ','.join(f'{name}={value}' for name, value in changed.items()) or (
      'temperature=1.0'
  )
