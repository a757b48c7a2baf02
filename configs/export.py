"""A drafter for other engines: written, read again, compared.

    python experiments/run.py --config=configs/export.py \
        --workdir=runs/quickstart
"""

from configs import base


def get_config():
  """Only the export stage."""
  config = base.get_config()
  config.stages = ('export',)
  return config
