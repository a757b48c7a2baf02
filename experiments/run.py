"""The one driver: runs the stages that a configuration names.

    python experiments/run.py --config=configs/quickstart.py --workdir=DIR
"""

import pathlib
import sys

# A script's own folder is on the path, not the repository.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags

from dflash_jax import errors
from experiments import certify
from experiments import drafters
from experiments import stages
from experiments import workspace

_CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'Configuration file of the experiment.', lock_config=True
)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder of the run: corpus, checkpoints, report.'
)

_STAGES = {
    'pretrain': stages.pretrain,
    'regenerate': stages.regenerate,
    'train': stages.train,
    'evaluate': stages.evaluate,
    'generate': stages.generate,
    'export': drafters.export,
    'passport': drafters.passport,
    'certify': certify.certify,
}
# Stages that can do without a workdir: they write nothing there.
_READING = {'generate', 'passport'}


def main(argv: list[str]) -> None:
  """Runs the stages in order."""
  del argv
  logging.set_verbosity(logging.WARNING)  # Orbax logs every step of a save.
  try:
    config = _CONFIG.value
    unknown = sorted(set(config.stages) - set(_STAGES))
    if unknown:
      raise errors.UserError(
          f'config.stages names {unknown}; choose from {list(_STAGES)}'
      )
    if _WORKDIR.value is None and not set(config.stages) <= _READING:
      raise errors.UserError('--workdir is missing: name a folder for the run')
    run = workspace.Workspace(config, _WORKDIR.value)
    for name in config.stages:
      print(f'== {name} ==', flush=True)
      _STAGES[name](run)
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)


if __name__ == '__main__':
  flags.mark_flag_as_required('config')
  app.run(main)
