import pathlib

import pytest

from dflash_jax import errors
from dflash_jax.checkpoint import hub


def test_a_folder_is_itself(tmp_path):
  assert hub.find(str(tmp_path)) == tmp_path


def test_what_is_neither_a_folder_nor_a_name():
  with pytest.raises(errors.UserError, match='/no/such/place: no such folder'):
    hub.find('/no/such/place')


def test_a_cached_model_needs_no_network(tmp_path, monkeypatch):
  """The hub's own cache, as a download leaves it."""
  commit = 'a' * 40
  repo = tmp_path / 'models--some--model'
  (repo / 'refs').mkdir(parents=True)
  (repo / 'refs' / 'main').write_text(commit)
  snapshot = repo / 'snapshots' / commit
  snapshot.mkdir(parents=True)
  (snapshot / 'config.json').write_text('{}')
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  assert hub.find('some/model') == pathlib.Path(snapshot)
  with pytest.raises(errors.UserError, match='other/model: .* check the name'):
    hub.find('other/model')
