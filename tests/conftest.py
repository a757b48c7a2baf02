"""Strictness that every test runs under."""

import os

# Compiling takes most of the time here, not running: code is left slow.
# `JAX_DISABLE_MOST_OPTIMIZATIONS=0 pytest` tests it as users run it.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')

import jax

jax.config.update('jax_numpy_rank_promotion', 'raise')
# For tests that shard; the others stay on the first device.
jax.config.update('jax_num_cpu_devices', 8)
