"""Every configuration loads; every field is read by something."""

import importlib
import pathlib
import re

import ml_collections
import pytest

from configs import base

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(
    path.stem for path in (ROOT / 'configs').glob('*.py')
    if path.stem != '__init__'
)


def leaves(config, prefix=''):
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from leaves(value, f'{prefix}{name}.')
    else:
      yield prefix + name


@pytest.mark.parametrize('name', NAMES)
def test_a_configuration_sets_fields_of_the_base_only(name):
  config = importlib.import_module(f'configs.{name}').get_config()
  assert set(leaves(config)) == set(leaves(base.get_config()))


def test_every_field_is_read():
  # Settings of a request go to `decode.sampling` as they are.
  text = ''.join(
      path.read_text()
      for room in ('experiments', 'dflash_jax/decode')
      for path in (ROOT / room).glob('*.py')
  )
  for field in leaves(base.get_config()):
    assert re.search(rf'\.{field.split(".")[-1]}\b', text), field
