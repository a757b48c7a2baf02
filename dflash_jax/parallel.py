"""Meshes, and where each parameter lies on one."""

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA, MODEL = 'data', 'model'

# Module or parameter -> the axis of its matrix that the model axis divides.
# Kernels are `[out, in]`: heads and MLP channels go apart on the way in, and
# meet again in `o` and `down`, one all-reduce each. Vocabularies go apart too.
_DIVIDED = {
    'q': 0, 'k': 0, 'v': 0, 'gate': 0, 'up': 0,
    'o': 1, 'down': 1,
    'embedding': 0, 'head': 0,
}


def mesh(data: int, model: int) -> Mesh:
  """A mesh of the first `data * model` devices.

  Args:
    data: ways that a batch is divided.
    model: ways that a model is divided.
  """
  return jax.make_mesh(
      (data, model), (DATA, MODEL), devices=jax.devices()[: data * model],
      axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )


def sharding(
    where: Mesh, path: tuple[str, ...], shape: tuple[int, ...]
) -> NamedSharding:
  """Of one parameter of a target or drafter.

  Args:
    where: the mesh.
    path: names down the tree of parameters.
    shape: of the parameter. An axis that the mesh does not divide evenly stays
      whole, as norms, biases and all small parts do.
  """
  spec: list[str | None] = [None] * len(shape)
  for name in path:
    axis = _DIVIDED.get(name)
    if axis is not None and len(shape) == 2:
      if shape[axis] % where.shape[MODEL] == 0:
        spec[axis] = MODEL
  return NamedSharding(where, PartitionSpec(*spec))


def batch_sharding(where: Mesh) -> NamedSharding:
  """Of arrays whose first axis is the batch."""
  return NamedSharding(where, PartitionSpec(DATA))
