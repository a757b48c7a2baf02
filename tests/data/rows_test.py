"""Tests of the shapes of prompt rows."""

import json

import pytest

from dflash_jax import errors
from dflash_jax.data import rows

_USER = {'role': 'user', 'content': 'hi'}


@pytest.mark.parametrize('row, fields', [
    ({'turns': ['hi', 'more']}, {'messages': (_USER,)}),
    ({'messages': [_USER]}, {'messages': (_USER,)}),
    ({'conversations': [{'from': 'human', 'value': 'hi'}]},
     {'messages': (_USER,)}),
    ({'conversations': [_USER]}, {'messages': (_USER,)}),
    ({'messages': [_USER, {'role': 'assistant', 'content': 'a'},
                   {'role': 'assistant', 'content': 'b'}]},
     {'messages': (_USER,)}),
    ({'text': 'hi'}, {'text': 'hi'}),
    ({'prompt': 'hi', 'answer': 3}, {'text': 'hi'}),
    ({'turns': ['hi'], 'text': 'not this'}, {'messages': (_USER,)}),
    ({'id': None, 'text': 'hi'}, {'text': 'hi'}),
    ({'id': 0, 'text': 'hi'}, {'text': 'hi', 'id': '0'}),
])
def test_parse(row, fields):
  assert rows.parse(json.dumps(row), 'here') == fields


@pytest.mark.parametrize('row, message', [
    ({'turns': []}, 'turns must be a list with an entry'),
    ({'turns': 'hi'}, 'turns must be a list with an entry'),
    ({'turns': [3]}, r'turns\[0\] must be a string, not int'),
    ({'text': None}, 'text must be a string, not NoneType'),
    ({'prompt': [_USER]}, 'prompt must be a string, not list'),
    ({'messages': ['hi']}, r'messages\[0\] must be an object'),
    ({'messages': [{'content': 'hi'}]}, r'messages\[0\] lacks role or from'),
    ({'messages': [{'role': 'user'}]}, r'messages\[0\] lacks content or value'),
    ({'messages': [{'role': 'user', 'content': [{'text': 'hi'}]}]},
     r'messages\[0\].content must be a string, not list'),
    ({'messages': [{'role': 'assistant', 'content': 'hi'}]},
     'messages has no message by the user'),
    ({'id': [1], 'text': 'hi'}, 'id must be a string or a number'),
])
def test_malformed(row, message):
  with pytest.raises(errors.UserError, match=f'^here: {message}'):
    rows.parse(json.dumps(row), 'here')


@pytest.mark.parametrize('line, message', [
    ('', 'not valid JSON'),
    ('{"text": "\\ud83d"}', r'a \\u escape is half of a pair'),
    ('[' * 100_000, 'nested too deeply'),
    ('{"id": ' + '9' * 5000 + ', "text": "a"}', 'Exceeds the limit'),
])
def test_hostile(line, message):
  with pytest.raises(errors.UserError, match=f'^here: {message}'):
    rows.parse(line, 'here')
