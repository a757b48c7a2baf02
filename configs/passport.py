"""What a drafter's folder holds, and whether its taps fit the target.

    python experiments/run.py --config=configs/passport.py --config.draft=DIR
"""

from configs import base


def get_config():
  """Only the passport stage."""
  config = base.get_config()
  config.stages = ('passport',)
  return config
