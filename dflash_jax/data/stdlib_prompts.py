"""Prompts out of Python's own standard library, which every machine has."""

import ast
from collections.abc import Iterator, Sequence
import textwrap

# Share of the files whose functions are never trained on.
HELDOUT_FRACTION = 0.1
# A docstring shorter than this says too little to write a function from.
_LEAST_DOCSTRING = 40


def tasks(sources: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
  """Yields (id, request) to write each documented public function.

  Args:
    sources: (name, text) of Python files; see `stdlib.sources`.
  """
  for name, text in sources:
    for function, docstring in _documented(text):
      stub = _stub(function, docstring)
      yield f'{name}:{function.lineno}', (
          'Write this Python function.\n\n```python\n' + stub + '\n```'
      )


def stubs(sources: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
  """Yields (id, text) of each documented function up to its docstring's end."""
  for name, text in sources:
    for function, docstring in _documented(text):
      yield f'{name}:{function.lineno}', _stub(function, docstring) + '\n'


def _documented(text: str) -> Iterator[tuple[ast.FunctionDef, str]]:
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef) and not node.name.startswith('_'):
      docstring = ast.get_docstring(node) or ''
      paragraph = docstring.split('\n\n')[0].strip()
      if len(paragraph) >= _LEAST_DOCSTRING and '"""' not in paragraph:
        yield node, paragraph


def _stub(function: ast.FunctionDef, docstring: str) -> str:
  head = f'def {function.name}({ast.unparse(function.args)}):'
  body = textwrap.indent(f'"""{docstring}"""', '    ')
  return f'{head}\n{body}'
