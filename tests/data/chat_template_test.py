"""Tests of chat templates on their own."""

import datetime

import pytest

from dflash_jax import errors
from dflash_jax.data import chat_template

_MESSAGES = ({'role': 'user', 'content': 'hi <b>'},)


@pytest.mark.parametrize('template, text', [
    ('{{ messages[0].content }}', 'hi <b>'),
    ('{% if true %}\n  x\n{% endif %}\ny', '  x\ny'),
    ('  {% if true %}x{% endif %}', 'x'),
    ('{{ messages[0] | tojson }}', '{"role": "user", "content": "hi <b>"}'),
    ('{{ {"a": "é"} | tojson(indent=1) }}', '{\n "a": "é"\n}'),
    ('{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}'
     '{% endfor %}', '012'),
    ('{{ tools is none }}{{ nothing is defined }}', 'TrueFalse'),
])
def test_render(template, text):
  assert chat_template.render(template, _MESSAGES, tools=None) == text


def test_strftime_now():
  year = chat_template.render('{{ strftime_now("%Y") }}', _MESSAGES)
  assert 0 <= datetime.datetime.now().year - int(year) <= 1


@pytest.mark.parametrize('template, message', [
    ('{{ raise_exception("no system role") }}', 'roles user: no system role'),
    ('{% if %}', 'Expected an expression'),
    ('{{ "" + messages[0].gone }}', "no attribute 'gone'"),
    ('{{ 1 + "a" }}', 'unsupported operand'),
    ('{{ "".__class__.__mro__ }}', 'unsafe'),
    ('{{ messages.append(1) }}', "'append' of 'list' object is unsafe"),
    ('{{ range(10**9) }}', 'Range too big'),
    ('{{ 1 / 0 }}', 'division by zero'),
])
def test_failures_are_one_error(template, message):
  with pytest.raises(errors.UserError, match=message):
    chat_template.render(template, _MESSAGES)


def test_messages_are_left_alone():
  frozen = ({'role': 'user', 'content': 'a'},)
  with pytest.raises(errors.UserError):
    chat_template.render('{{ messages[0].update({"content": "b"}) }}', frozen)
  assert frozen == ({'role': 'user', 'content': 'a'},)
