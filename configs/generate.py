"""One prompt, streamed, with a drafter that an earlier run trained.

    python experiments/run.py --config=configs/generate.py \
        --config.draft=runs/quickstart/drafter \
        --config.generate.prompt='Why is the sky blue?'
"""

from configs import base


def get_config():
  """Only the generate stage."""
  config = base.get_config()
  config.stages = ('generate',)
  return config
