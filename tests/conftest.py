"""Strictness that every test runs under."""

import jax

jax.config.update('jax_numpy_rank_promotion', 'raise')
# For tests that shard; the others stay on the first device.
jax.config.update('jax_num_cpu_devices', 8)
