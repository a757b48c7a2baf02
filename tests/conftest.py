"""Strictness that every test runs under, and cheap compilation."""

import os

import jax

jax.config.update('jax_numpy_rank_promotion', 'raise')
# For tests that shard; the others stay on the first device.
jax.config.update('jax_num_cpu_devices', 8)
# Compiling takes most of the time here, not running. To test the code as users
# run it: `JAX_DISABLE_MOST_OPTIMIZATIONS=0 python -m pytest`.
if 'JAX_DISABLE_MOST_OPTIMIZATIONS' not in os.environ:
  jax.config.update('jax_disable_most_optimizations', True)
