"""The main job on SmolLM2-135M-Instruct: regenerate, train, evaluate, report.

    python experiments/run.py --config=configs/quickstart.py --workdir=runs/quickstart
"""

from configs import base


def get_config():
  """The base configuration as it is."""
  return base.get_config()
