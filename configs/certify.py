"""Is the output the target's own: exactly, by statistics, token for token.

    python experiments/run.py --config=configs/certify.py \
        --workdir=runs/quickstart
"""

from configs import base


def get_config():
  """Only the certify stage."""
  config = base.get_config()
  config.stages = ('certify',)
  return config
