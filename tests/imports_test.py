"""Dependencies point one way, and heavy packages have one door each."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(
    path.relative_to(ROOT)
    for room in ('dflash_jax', 'experiments', 'configs')
    for path in (ROOT / room).rglob('*.py')
)
# Room -> rooms of dflash_jax that it may import, besides itself.
BASE = {'errors', 'files', 'parallel', 'typing'}
RULES = {
    'nn': set(),
    'target': {'nn'},
    'selector': {'nn'},
    'drafter': {'nn', 'target', 'selector'},
    'verifier': {'nn'},
    'decode': {'nn', 'target', 'selector', 'drafter', 'verifier'},
    'train': {'nn', 'target', 'selector', 'drafter', 'verifier', 'decode'},
    'evaluate': {'nn', 'target', 'selector', 'drafter', 'verifier', 'decode'},
    'checkpoint': {'nn', 'target', 'drafter'},
    'data': set(),
    'errors': set(), 'files': set(), 'parallel': set(), 'typing': set(), '__init__': set(),
}
# Package -> where it may be imported.
DOORS = {
    'orbax': ('dflash_jax/checkpoint/orbax.py',),
    'tensorflow_datasets': ('dflash_jax/data/',),
    'array_record': ('dflash_jax/data/',),
    'gguf': ('dflash_jax/checkpoint/',),
    'safetensors': ('dflash_jax/checkpoint/',),
    'huggingface_hub': ('dflash_jax/checkpoint/hub.py',),
    'tokenizers': ('dflash_jax/data/',),
    'jinja2': ('dflash_jax/data/',),
    'matplotlib': ('dflash_jax/evaluate/plots.py',),
    'absl': ('experiments/',),
    'ml_collections': ('experiments/', 'configs/'),
    'optax': ('dflash_jax/train/',),
    'torch': (), 'transformers': (), 'tensorflow': (), 'pickle': (),
}


def imports(source):
  """Dotted names of all that a file imports, function bodies included."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      dots = '.' * node.level
      for alias in node.names:
        yield f'{dots}{node.module or ""}.{alias.name}'


def allowed(path, name):
  """Whether the file at `path` may import `name`."""
  top, *rest = name.split('.')
  if top == '':
    return False  # relative
  if top in DOORS:
    # The parts of a package's own name, such as our `checkpoint.gguf`.
    return str(path).startswith(DOORS[top] or ('nowhere',))
  if path.parts[0] == 'configs':
    return top in ('configs', 'ml_collections')
  if path.parts[0] == 'dflash_jax':
    room = path.parts[1].removesuffix('.py')
    if top == 'dflash_jax':
      return bool(rest) and rest[0] in RULES[room] | BASE | {room}
    return top not in ('experiments', 'configs', 'tests')
  return top != 'tests'


@pytest.mark.parametrize('path', FILES, ids=str)
def test_a_file_imports_only_what_its_room_may(path):
  names = imports((ROOT / path).read_text())
  assert not [name for name in names if not allowed(path, name)]


@pytest.mark.parametrize('path, source', [
    ('dflash_jax/nn/x.py', 'from dflash_jax.target import decoder'),
    ('dflash_jax/target/x.py', 'import dflash_jax.drafter.model'),
    ('dflash_jax/drafter/x.py', 'from dflash_jax.decode import engine'),
    ('dflash_jax/decode/x.py', 'from dflash_jax import train'),
    ('dflash_jax/decode/x.py', 'from dflash_jax.data import corpus'),
    ('dflash_jax/train/x.py', 'from dflash_jax.checkpoint import orbax'),
    ('dflash_jax/train/x.py', 'from dflash_jax import evaluate'),
    ('dflash_jax/evaluate/x.py', 'def f():\n  from dflash_jax import train'),
    ('dflash_jax/data/x.py', 'from dflash_jax.decode import session'),
    ('dflash_jax/errors.py', 'from dflash_jax import nn'),
    ('dflash_jax/nn/x.py', 'from . import norms'),
    ('dflash_jax/nn/x.py', 'from ..target import decoder'),
    ('dflash_jax/nn/x.py', 'import dflash_jax'),
    ('dflash_jax/train/x.py', 'import experiments.run'),
    ('dflash_jax/train/x.py', 'from absl import flags'),
    ('dflash_jax/train/x.py', 'import ml_collections as mlc'),
    ('dflash_jax/train/x.py', 'import orbax.checkpoint as ocp'),
    ('dflash_jax/checkpoint/x.py', 'from orbax.checkpoint import v1'),
    ('dflash_jax/train/x.py', 'import numpy, tensorflow_datasets as tfds'),
    ('dflash_jax/train/x.py', 'from array_record.python import reader'),
    ('dflash_jax/data/x.py', 'import gguf'),
    ('dflash_jax/data/x.py', 'from safetensors import numpy'),
    ('dflash_jax/decode/x.py', 'import tokenizers'),
    ('dflash_jax/train/x.py', 'import jinja2'),
    ('dflash_jax/evaluate/report.py', 'from matplotlib import figure'),
    ('dflash_jax/data/x.py', 'def f():\n  import torch'),
    ('experiments/run.py', 'import transformers'),
    ('experiments/run.py', 'if True:\n  import pickle'),
    ('experiments/run.py', 'from tests import tiny'),
    ('configs/x.py', 'import jax'),
    ('configs/x.py', 'from dflash_jax import errors'),
])
def test_a_wrong_import_is_seen(path, source):
  assert not all(allowed(pathlib.Path(path), name) for name in imports(source))


@pytest.mark.parametrize('path', FILES, ids=str)
def test_a_file_stays_readable(path):
  assert len((ROOT / path).read_text().splitlines()) <= 500


def test_the_package_has_no_other_rooms():
  rooms = {p.parts[1].removesuffix('.py') for p in FILES
           if p.parts[0] == 'dflash_jax'}
  assert rooms == set(RULES)
