"""Speed ratios of the decoder on this machine, and what bounds each.

    python experiments/bench_cpu.py --out=runs/bench_cpu.json

The two sides of a ratio run in turn, once a repeat, so that a slow moment of
the machine hits both; a ratio is taken within its repeat. Nothing else should
run meanwhile, since a multi-threaded matrix product that loses one core waits
for it: the load average is printed and stored.

Parts, chosen with `--only`:
  ar: greedy decoding at block 1, batch 1, against transformers' `generate` on
    the same float32 weights (where torch is installed).
  verify: one pass of several rows against one of a single row, head and argmax
    included, behind a long context.
  batch: a batch of requests against one, prefill included, as regeneration
    does it; all requests run to their budget.
  sampling: a speculative round that samples at temperature 1 against one that
    decodes greedily, with a new drafter of either kind: what a round computes
    does not depend on how much of its block holds.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import datetime
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import pydoc_data.topics
import shlex
import sys
import time
from typing import Any, NamedTuple

# A script's own folder is on the path, not the repository.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.checkpoint import gguf
from dflash_jax.data import packages
from dflash_jax.data import tokenizer as tokenizers
from dflash_jax.decode import engine
from dflash_jax.decode import propose
from dflash_jax.decode import sampling as samplings
from dflash_jax.decode import session as sessions
from dflash_jax.decode import state
from dflash_jax.drafter import initialize
from dflash_jax.drafter import model as drafter_model
from dflash_jax.nn import linear
from dflash_jax.target import decoder
from dflash_jax.verifier import rules
from configs import base
from experiments import workspace

_PARTS = ('ar', 'verify', 'batch', 'sampling')
_ONLY = flags.DEFINE_list('only', list(_PARTS), 'Parts to measure.')
_OUT = flags.DEFINE_string('out', 'runs/bench_cpu.json', 'JSON to write.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Of each figure.', 1)
_PROMPT = flags.DEFINE_integer('prompt_tokens', 128, 'Tokens of a prompt.', 1)
_NEW = flags.DEFINE_integer('new_tokens', 128, 'Tokens to decode.', 2)
_CONTEXT = flags.DEFINE_integer('context', 256, 'Tokens before a pass.', 1)
_ROWS = flags.DEFINE_list('rows', ['4', '8', '16'], 'Rows of a verify pass.')
_BATCHES = flags.DEFINE_list('batches', ['32', '48'], 'Requests in a batch.')

# Passes timed together: one is short against the clock of a busy machine.
_PASSES = 10
# Bytes and operations of the two `_limit_actions`.
_LIMIT_AMOUNTS = (4.0 * 2**26, 2.0 * 512 * 2048 * 2048)


class Target(NamedTuple):
  """The model to measure, and tokens of real text."""

  path: pathlib.Path
  module: decoder.Decoder
  params: Any
  text: list[int]

  @property
  def num_bytes(self) -> int:
    """What a pass reads: every parameter once, the embedding as the head."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(self.params))

  def cache_bytes(self, capacity: int) -> int:
    """Keys and values of one request."""
    cache = jax.eval_shape(lambda: self.module.empty_cache(1, capacity))
    return sum(4 * leaf.size for leaf in cache.keys + cache.values)


class Report:
  """Figures, one value a repeat, and a line on what bounds each part."""

  def __init__(self):
    self.figures: dict[str, dict[str, Any]] = {}
    self.notes: list[str] = []

  def add(self, name: str, unit: str, values: Sequence[float]) -> None:
    self.figures[name] = {
        'unit': unit,
        'median': float(np.median(values)),
        'min': float(np.min(values)),
        'max': float(np.max(values)),
        'repeats': len(values),
    }

  def bound(
      self,
      name: str,
      seconds: np.ndarray,
      num_bytes: float,
      operations: float,
      limits: Mapping[str, np.ndarray],
  ) -> None:
    """Notes how near a step comes to the machine's two limits."""
    seconds = float(np.median(seconds))
    amounts = {'memory traffic': num_bytes, 'arithmetic': operations}
    shares, rates = {}, {}
    for (kind, amount), of_limit in zip(amounts.items(), _LIMIT_AMOUNTS):
      rates[kind] = amount / seconds / 1e9
      shares[kind] = 1e9 * rates[kind] / of_limit * np.median(limits[kind])
    self.notes.append(
        f'{name}: {1e3 * seconds:.1f} ms a step, nearest limit'
        f' {max(shares, key=shares.get)}: {num_bytes / 1e6:.0f} MB at'
        f' {rates["memory traffic"]:.1f} GB/s,'
        f' {shares["memory traffic"]:.0%} of a plain reduction;'
        f' {rates["arithmetic"]:.1f} GFLOP/s,'
        f' {shares["arithmetic"]:.0%} of a large matrix product'
    )

  def lines(self) -> list[str]:
    """The table."""
    width = max(map(len, self.figures), default=0)
    rows = [f'{"":{width}}  {"median":>8} {"min":>8} {"max":>8}']
    for name, figure in self.figures.items():
      numbers = ' '.join(
          f'{figure[key]:8.2f}' for key in ('median', 'min', 'max')
      )
      rows.append(f'{name:{width}}  {numbers} {figure["unit"]}')
    return rows + self.notes


def main(argv: list[str]) -> None:
  """Measures the parts, prints the table, writes the JSON."""
  del argv
  logging.set_verbosity(logging.WARNING)  # JAX logs the platforms it lacks.
  try:
    started = datetime.datetime.now().astimezone()
    load = [os.getloadavg()[0]]
    target = _load()
    report = Report()
    measure = {
        'ar': _ar, 'verify': _verify, 'batch': _batch, 'sampling': _sampling
    }
    for part in _ONLY.value:
      measure[part](target, report)
    load.append(os.getloadavg()[0])
    versions = workspace.versions() | _torch_versions()
    print(
        f'{target.path.name}, float32, {workspace.device()}; load average'
        f' {load[0]:.1f} before, {load[1]:.1f} after'
    )
    if load[0] > 0.5:
      print('The machine was busy: do not trust these figures.')
    print('\n'.join(report.lines()))
    files.atomic_write(_OUT.value, json.dumps({
        'command': shlex.join(['python', *sys.argv]),
        'date': started.isoformat(timespec='seconds'),
        'versions': versions,
        'device': workspace.device(),
        'load_average': load,
        'model': target.path.name,
        'figures': report.figures,
        'notes': report.notes,
    }, indent=2) + '\n')
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)


def _load() -> Target:
  path = packages.fetch('smollm2')
  model = gguf.load(path)
  topics = pydoc_data.topics.topics
  text = '\n'.join(topics[name] for name in sorted(topics))
  tokens = tokenizers.Tokenizer.from_gguf(model.metadata).encode(text)
  return Target(path, decoder.Decoder(model.config), model.params, tokens)


def _torch_versions() -> dict[str, str]:
  if (torch := _torch()) is None:
    return {}
  return {
      'torch': torch.__version__,
      'torch_threads': str(torch.get_num_threads()),
      'transformers': importlib.metadata.version('transformers'),
  }


def _torch():
  """The module, or None where it is not installed."""
  try:
    importlib.import_module('transformers')
    return importlib.import_module('torch')
  except ImportError:
    return None


@functools.cache
def _limit_actions() -> dict[str, Callable[[], Any]]:
  """A reduction of 256 MiB, and a product of 512 rows with a square matrix."""
  wide = jnp.ones((2**16, 2**10))
  rows, square = jnp.ones((512, 2048)), jnp.ones((2048, 2048))
  reduce = jax.jit(lambda x: jnp.max(x, axis=1))
  multiply = jax.jit(linear.project)
  return {
      'memory traffic': lambda: reduce(wide),
      'arithmetic': lambda: multiply(rows, square),
  }


def _in_turn(
    actions: Mapping[str, Callable[[], Any]],
) -> dict[str, np.ndarray]:
  """Seconds of each action in each repeat; the first, unmeasured, compiles."""
  actions = dict(actions) | _limit_actions()
  seconds = {name: [] for name in actions}
  for repeat in range(_REPEATS.value + 1):
    for name, action in actions.items():
      begin = time.perf_counter()
      jax.block_until_ready(action())
      if repeat > 0:
        seconds[name].append(time.perf_counter() - begin)
  return {name: np.array(values) for name, values in seconds.items()}


def _session(target: Target) -> sessions.Session:
  """Autoregressive decoding that no token stops."""
  return sessions.Session(
      engine.Engine(target.module, None, 1, ()), state.Params(target.params)
  )


def _prompts(target: Target, count: int) -> list[list[int]]:
  size = _PROMPT.value
  return [target.text[i * size : (i + 1) * size] for i in range(count)]


def _operations(target: Target, rows: int, capacity: int) -> float:
  """Multiplications and additions in a pass of one request's rows."""
  config = target.module.config
  attention = 2 * config.num_layers * config.num_heads * config.head_dim
  return 2.0 * rows * (target.num_bytes / 4 + attention * capacity)


def _ar(target: Target, report: Report) -> None:
  """Both sides decode the same prompt, and once more a single token of it.

  Whole requests are compared, and the decoding alone: the difference between
  a long and a one-token request.
  """
  (prompt,) = _prompts(target, 1)
  new = _NEW.value
  decoding = _session(target)
  generators = {'ours': lambda count: decoding.generate([prompt], count)}
  torch = _torch()
  if torch is None:
    report.notes.append('transformers: not measured, torch is not installed')
  else:
    generators['transformers'] = _transformers(target, torch, prompt)
    same = generators['transformers'](new) == generators['ours'](new)[0].tokens
    report.notes.append(f'ar: the {new} tokens are equal: {same}')
  seconds = _in_turn({
      f'{side} {count}': functools.partial(generator, count)
      for side, generator in generators.items() for count in (new, 1)
  })
  whole = {side: new / seconds[f'{side} {new}'] for side in generators}
  alone = {
      side: (new - 1) / (seconds[f'{side} {new}'] - seconds[f'{side} 1'])
      for side in generators
  }
  for kind, rates in (('decode', alone), ('whole request', whole)):
    for side, values in rates.items():
      report.add(f'ar: {side}, {kind}', 'tokens/s', values)
    if 'transformers' in rates:
      report.add(
          f'ar: ratio, {kind}', 'x', rates['ours'] / rates['transformers']
      )
  capacity = sessions.bucket(len(prompt) + new + 1)
  report.bound(
      'ar, ours', 1 / alone['ours'],
      target.num_bytes + target.cache_bytes(capacity),
      _operations(target, 1, capacity), seconds,
  )


def _transformers(
    target: Target, torch: Any, prompt: Sequence[int]
) -> Callable[[int], list[int]]:
  """Greedy `generate` on the weights of the same file."""
  transformers = importlib.import_module('transformers')
  model = transformers.AutoModelForCausalLM.from_pretrained(
      target.path.parent, gguf_file=target.path.name, dtype=torch.float32
  ).eval()
  tokens = torch.tensor([prompt])

  def generate(count: int) -> list[int]:
    out = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
        max_new_tokens=count, eos_token_id=None, pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()

  return generate


def _verify(target: Target, report: Report) -> None:
  """Passes behind `--context` tokens, each at the same place of the cache."""
  rows = [1, *map(int, _ROWS.value)]
  context = _CONTEXT.value
  capacity = sessions.bucket(context + max(rows))

  @functools.partial(jax.jit, donate_argnums=2)
  def step(params, tokens, cache):
    hidden, _, cache = target.module.apply({'params': params}, tokens, cache)
    logits = target.module.apply({'params': params}, hidden, method='head')
    return jnp.argmax(logits, axis=-1), cache

  def passes(count: int) -> Callable[[], jax.Array]:
    tokens = jnp.asarray([target.text[context : context + count]])
    cache = target.module.empty_cache(1, capacity)
    cache = cache.replace(length=cache.length + context)

    def run() -> jax.Array:
      nonlocal cache
      for _ in range(_PASSES):
        best, cache = step(target.params, tokens, cache)
      return best

    return run

  seconds = _in_turn({str(count): passes(count) for count in rows})
  for count in rows:
    report.add(
        f'verify: {count} rows', 'ms', 1e3 * seconds[str(count)] / _PASSES
    )
  for count in rows[1:]:
    report.add(
        f'verify: ratio, {count} rows', 'x', seconds[str(count)] / seconds['1']
    )
  for count in rows:
    report.bound(
        f'verify, {count} rows', seconds[str(count)] / _PASSES,
        target.num_bytes + target.cache_bytes(capacity),
        _operations(target, count, capacity), seconds,
    )


def _batch(target: Target, report: Report) -> None:
  """Requests of equal length; the decoding is timed inside as well."""
  sizes = [1, *map(int, _BATCHES.value)]
  new = _NEW.value
  prompts = _prompts(target, max(sizes))
  decoding = _session(target)
  decode_seconds: dict[int, list[float]] = {size: [] for size in sizes}

  def generate(size: int) -> None:
    completions = decoding.generate(prompts[:size], new)
    decode_seconds[size].append(sum(c.seconds for c in completions))

  whole = _in_turn({
      str(size): functools.partial(generate, size) for size in sizes
  })
  # The first run compiled.
  alone = {size: np.array(s[1:]) for size, s in decode_seconds.items()}
  rates = {
      'decode': {size: size * (new - 1) / alone[size] for size in sizes},
      'whole request': {size: size * new / whole[str(size)] for size in sizes},
  }
  for kind, by_size in rates.items():
    for size in sizes:
      report.add(f'batch: {size}, {kind}', 'tokens/s', by_size[size])
    for size in sizes[1:]:
      report.add(
          f'batch: ratio, {size}, {kind}', 'x', by_size[size] / by_size[1]
      )
  capacity = sessions.bucket(_PROMPT.value + new + 1)
  for size in sizes:
    report.bound(
        f'batch, {size}', alone[size] / (new - 1),
        target.num_bytes + size * target.cache_bytes(capacity),
        _operations(target, size, capacity), whole,
    )


def _sampling(target: Target, report: Report) -> None:
  """Rounds of one request, the same for both sides of a ratio."""
  (prompt,) = _prompts(target, 1)
  v1 = workspace.new_drafter(target.module.config, base.get_config().drafter, 0)
  kinds = {
      'DFlash': v1,
      'DFlash 2': dataclasses.replace(
          v1, is_causal=False, conv_kernel_size=3, conv_group_size=64,
          selector_rank=64, selector_top_k=16,
      ),
  }
  laws = {
      'top-k 50': samplings.Sampling(top_k=50),
      'top-p 0.9': samplings.Sampling(top_p=0.9),
      'no filter': samplings.Sampling(),
  }
  for kind, config in kinds.items():
    params = state.Params(
        target.params, initialize.from_scratch(config, jax.random.key(0))
    )
    seconds: dict[str, list[float]] = {}

    def rounds(name: str, session: sessions.Session, *asked) -> None:
      (done,) = session.generate([prompt], _NEW.value, *asked)
      seconds.setdefault(name, []).append(done.seconds / len(done.accepted))

    greedy, sampled = (
        sessions.Session(
            engine.Engine(
                target.module, drafter_model.Drafter(config), config.block_size,
                (), sampler=sampler,
            ), params,
        ) for sampler in (None, propose.Sampler(rules.block, True))
    )
    actions = {'greedy': functools.partial(rounds, 'greedy', greedy)} | {
        name: functools.partial(rounds, name, sampled, [asked])
        for name, asked in laws.items()
    }
    _in_turn(actions)
    # The first run compiled.
    times = {name: np.array(values[1:]) for name, values in seconds.items()}
    report.add(f'sampling: {kind}, greedy round', 'ms', 1e3 * times['greedy'])
    for name in laws:
      report.add(
          f'sampling: {kind}, ratio, {name}', 'x', times[name] / times['greedy']
      )


def _positive_integers(values: Sequence[str]) -> bool:
  return all(value.isdecimal() and int(value) > 0 for value in values)


flags.register_validator(
    'only', lambda parts: set(parts) <= set(_PARTS),
    f'names a part that is not one of {", ".join(_PARTS)}',
)
for _name in ('rows', 'batches'):
  flags.register_validator(
      _name, _positive_integers, 'must hold positive integers'
  )


if __name__ == '__main__':
  app.run(main)
