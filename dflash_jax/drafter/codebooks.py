"""Projected selector codebooks, multiplied out for the published format."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax

from dflash_jax.drafter import config as drafter_config
from dflash_jax.nn import linear


def multiply_out(
    config: drafter_config.DrafterConfig,
    params: Mapping[str, Any],
    embedding: jax.Array,
) -> tuple[drafter_config.DrafterConfig, dict[str, Any]]:
  """The same drafter with free codebooks; as it is if it has them already.

  Args:
    config: of the drafter.
    params: of the drafter.
    embedding: `[V, D]` rows of its target's embedding.
  """
  if not config.selector_projected:
    return config, dict(params)
  selector = {
      'hidden_projection': params['selector']['hidden_projection']
  }
  for name in ('predecessor', 'successor'):
    selector[f'{name}_codebook'] = linear.project(
        embedding, params['selector'][f'{name}_projection']
    )
  config = dataclasses.replace(config, selector_projected=False)
  return config, {**params, 'selector': selector}
