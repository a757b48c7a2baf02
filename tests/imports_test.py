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
BASE = {'errors', 'files', 'typing'}
RULES = {
    'nn': set(),
    'target': {'nn'},
    'drafter': {'nn', 'target'},
    'verifier': {'nn'},
    'decode': {'nn', 'target', 'drafter', 'verifier'},
    'train': {'nn', 'target', 'drafter', 'verifier', 'decode'},
    'evaluate': {'nn', 'target', 'drafter', 'verifier', 'decode'},
    'checkpoint': {'nn', 'target', 'drafter'},
    'data': set(),
    'errors': set(), 'files': set(), 'typing': set(), '__init__': set(),
}
# Package -> where it may be imported.
DOORS = {
    'orbax': ('dflash_jax/checkpoint/orbax.py',),
    'tensorflow_datasets': ('dflash_jax/data/',),
    'array_record': ('dflash_jax/data/',),
    'gguf': ('dflash_jax/checkpoint/',),
    'safetensors': ('dflash_jax/checkpoint/',),
    'tokenizers': ('dflash_jax/data/',),
    'jinja2': ('dflash_jax/data/',),
    'matplotlib': ('dflash_jax/evaluate/plots.py',),
    'absl': ('experiments/',),
    'ml_collections': ('experiments/', 'configs/'),
    'optax': ('dflash_jax/train/',),
    'torch': (), 'transformers': (), 'tensorflow': (), 'pickle': (),
}


def imports(path):
  """Dotted names of all that a file imports, function bodies included."""
  for node in ast.walk(ast.parse((ROOT / path).read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: relative import'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('path', FILES, ids=str)
def test_a_file_imports_only_what_its_room_may(path):
  for name in imports(path):
    top, *rest = name.split('.')
    if top in DOORS:
      # The parts of a package's own name, such as our `checkpoint.gguf`.
      assert str(path).startswith(DOORS[top] or ('nowhere',)), (path, name)
    if path.parts[0] == 'dflash_jax':
      assert top not in ('experiments', 'configs', 'tests'), (path, name)
      if top == 'dflash_jax':
        room = path.parts[1].removesuffix('.py')
        assert rest[0] in RULES[room] | BASE | {room}, (path, name)
    if path.parts[0] == 'configs':
      assert top in ('configs', 'ml_collections'), (path, name)


@pytest.mark.parametrize('path', FILES, ids=str)
def test_a_file_stays_readable(path):
  assert len((ROOT / path).read_text().splitlines()) <= 500


def test_the_package_has_no_other_rooms():
  rooms = {p.parts[1].removesuffix('.py') for p in FILES
           if p.parts[0] == 'dflash_jax'}
  assert rooms == set(RULES)
