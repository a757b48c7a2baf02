"""Tests of the prompts out of the standard library."""

import ast

from dflash_jax.data import stdlib
from dflash_jax.data import stdlib_prompts

LONG = 'Return the sum of two numbers, rounded to the nearest integer.'
SOURCE = f'''
def add(a: int, b=2, *rest, c, **more) -> int:
  """{LONG}

  A second paragraph is not asked for.
  """
  return a + b


def short():
  """Too short."""


def _private():
  """{LONG}"""


def bare():
  return 1


class Thing:

  def method(self):
    """{LONG[:30]}
    {LONG[30:]}
    """


async def later():
  """{LONG}"""
'''
STUB = f'''def add(a: int, b=2, *rest, c, **more):
    """{LONG}"""'''


def test_documented_public_functions_up_to_their_docstring():
  found = dict(stdlib_prompts.stubs([('some.py', SOURCE)]))
  assert found == {
      'some.py:2': STUB + '\n',
      'some.py:24': (
          'def method(self):\n'
          f'    """{LONG[:30].rstrip()}\n    {LONG[30:].lstrip()}"""\n'
      ),
  }


def test_tasks_ask_for_the_same_functions():
  tasks = list(stdlib_prompts.tasks([('some.py', SOURCE)]))
  assert [name for name, _ in tasks] == ['some.py:2', 'some.py:24']
  assert tasks[0][1] == (
      f'Write this Python function.\n\n```python\n{STUB}\n```'
  )


def test_a_docstring_that_holds_its_own_quotes_is_left_out():
  source = f"def f():\n  '''{LONG} \"\"\" more'''\n"
  assert not list(stdlib_prompts.stubs([('a.py', source)]))


def test_files_keep_their_order():
  sources = [('b.py', SOURCE), ('a.py', SOURCE)]
  names = [name.split(':')[0] for name, _ in stdlib_prompts.stubs(sources)]
  assert names == ['b.py', 'b.py', 'a.py', 'a.py']


def test_the_whole_library():
  sources = stdlib.sources()
  stubs = list(stdlib_prompts.stubs(sources))
  assert len(stubs) > 1000
  assert len({name for name, _ in stubs}) == len(stubs)
  # Each is a piece of its file: the head of a function of that name.
  for name, text in stubs[::50]:
    path, line = name.rsplit(':', 1)
    head = text.split('(')[0]
    lines = dict(sources)[path].splitlines()
    assert lines[int(line) - 1].lstrip().startswith(head)
    assert ast.parse(text.split('\n')[0] + ' pass')
