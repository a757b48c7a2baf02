"""Checked array annotations: one letter, one meaning.

B batch, T query positions, S key/cache positions, C context positions given to
the drafter, L block slots (anchor included), K candidates, V vocabulary,
A anchors per sequence, D model width, N query heads, M key-value heads,
H head dim, F MLP hidden, P tapped target layers.
"""

from typing import TypeVar

import beartype
import jaxtyping

_Function = TypeVar('_Function')


def typed(function: _Function) -> _Function:
  """Checks the jaxtyping annotations of `function` while it is traced."""
  return jaxtyping.jaxtyped(typechecker=beartype.beartype)(function)
