import io
import pathlib

import matplotlib
from matplotlib import image
import numpy as np
import pytest

from dflash_jax.evaluate import plots

ROWS = [
    {'step': 10, 'loss': 3.0, 'accuracy': [0.2, 0.1]},
    {'step': 20, 'loss': 2.0, 'accuracy': [0.3, 0.2], 'labels': 5},
    {'step': 20, 'eval/tau': 1.2, 'eval/other': 3},
]


def pixels(path: pathlib.Path) -> np.ndarray:
  return image.imread(io.BytesIO(path.read_bytes()), format='png')


def summary(block_size=4, rate=0.5, tau=1.8):
  slots = block_size - 1
  return {
      'block_size': block_size,
      'recall_at_1': [rate] * slots,
      'recall_at_16': [rate] * slots,
      'produced_histogram': [3] * block_size if tau else [0] * block_size,
      'tau_pooled': tau,
  }


@pytest.mark.parametrize('draw', [plots.suffix_decay, plots.accepted_histogram])
@pytest.mark.parametrize(
    'values', [{}, {'block_size': 16}, {'rate': None, 'tau': None}]
)
def test_summary_plots(draw, values, tmp_path):
  draw(summary(**values), tmp_path / 'new' / 'plot.png')
  shape = pixels(tmp_path / 'new' / 'plot.png').shape
  assert shape[0] > 400 and shape[1] > 900
  assert [p.name for p in (tmp_path / 'new').iterdir()] == ['plot.png']


def test_plots_show_the_numbers(tmp_path):
  path = tmp_path / 'plot.png'
  images = []
  for rate in (0.5, 0.6):
    plots.suffix_decay(summary(rate=rate), path)
    images.append(pixels(path))
  assert not np.array_equal(*images)


@pytest.mark.parametrize('rows', [
    ROWS, ROWS[:1], ROWS[2:], [], [{'step': 1}], [{'step': 1, 'eval/tau': None}]
])
def test_training_curves_with_missing_metrics(rows, tmp_path):
  plots.training_curves(rows, tmp_path / 'plot.png')
  assert pixels(tmp_path / 'plot.png').shape[1] > 1500


def test_no_global_state_is_touched(tmp_path):
  before = dict(matplotlib.rcParams)
  plots.training_curves(ROWS, tmp_path / 'plot.png')
  plots.suffix_decay(summary(), tmp_path / 'plot.png')
  assert dict(matplotlib.rcParams) == before
  source = pathlib.Path(plots.__file__).read_text()
  assert 'import pyplot' not in source and 'rcParams' not in source
