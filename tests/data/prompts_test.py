"""Tests of prompt sources."""

import json

import pytest

from dflash_jax import errors
from dflash_jax.data import prompts
from dflash_jax.data import stdlib


def _write(path, *rows):
  path.write_text('\n'.join(map(json.dumps, rows)), encoding='utf-8')
  return str(path)


def test_the_usual_shapes(tmp_path):
  source = _write(
      tmp_path / 'some.jsonl',
      {'id': 'a', 'turns': ['first', 'second']},
      {'messages': [
          {'role': 'system', 'content': 'short'},
          {'role': 'user', 'content': 'hello'},
          {'role': 'assistant', 'content': 'dropped'},
      ]},
      {'id': 7, 'conversations': [
          {'from': 'human', 'value': 'one'},
          {'from': 'gpt', 'value': 'kept'},
          {'from': 'human', 'value': 'two'},
          {'from': 'gpt', 'value': 'dropped'},
      ]},
      {'prompt': 'def f(x):'},
      {'text': ' as it stands '},
  )
  user = lambda text: {'role': 'user', 'content': text}
  assert prompts.load(source) == [
      prompts.Prompt('a', (user('first'),)),
      prompts.Prompt(
          'some/2', ({'role': 'system', 'content': 'short'}, user('hello'))
      ),
      prompts.Prompt('7', (
          user('one'), {'role': 'assistant', 'content': 'kept'}, user('two')
      )),
      prompts.Prompt('some/4', text='def f(x):'),
      prompts.Prompt('some/5', text=' as it stands '),
  ]


def test_text_file_has_a_prompt_on_each_line(tmp_path):
  path = tmp_path / 'plain.txt'
  path.write_bytes('\ufeffone\r\n\r\n  two\u2028still two\n \n'.encode())
  assert prompts.load(str(path)) == [
      prompts.Prompt('plain/1', text='one'),
      prompts.Prompt('plain/3', text='  two\u2028still two'),
  ]


def test_blank_lines_and_raw_separators_in_json(tmp_path):
  path = tmp_path / 'some.jsonl'
  path.write_text('\n{"text": "a\u2028b\x85c"}\r\n\n', encoding='utf-8')
  assert prompts.load(str(path)) == [
      prompts.Prompt('some/2', text='a\u2028b\x85c')
  ]


def test_limit_and_seed(tmp_path):
  rows = [{'id': str(i), 'text': f'text {i}'} for i in range(20)]
  source = _write(tmp_path / 'many.jsonl', *rows)
  ids = lambda **options: [p.id for p in prompts.load(source, **options)]
  assert ids() == [str(i) for i in range(20)]
  assert ids(limit=3) == ['0', '1', '2']
  assert ids(limit=99) == ids()
  assert ids(seed=42) == ids(seed=42) != ids()
  assert sorted(ids(seed=42)) == sorted(ids())
  assert ids(seed=42, limit=5) == ids(seed=42)[:5] != ids(seed=43, limit=5)
  with pytest.raises(errors.UserError, match='at least 1, not 0'):
    ids(limit=0)


@pytest.mark.parametrize('line, message', [
    ('{"text": "cut', 'line 3: not valid JSON .*column 10'),
    ('["a list"]', 'line 3: a JSON list'),
    ('{"question": "?"}', r"line 3: no prompt among the keys \['question'\]"),
    ('{"text": "  "}', "line 3: prompt 'bad/3' is empty"),
    ('{"turns": [""]}', "line 3: prompt 'bad/3' is empty"),
    ('{"id": "one", "text": "b"}', "line 3: the id 'one' is that of line 1"),
    (b'{"text": "\xff"}', 'line 3: not UTF-8'),
])
def test_malformed_line(tmp_path, line, message):
  path = tmp_path / 'bad.jsonl'
  line = line if isinstance(line, bytes) else line.encode()
  path.write_bytes(b'{"id": "one", "text": "fine"}\n\n' + line + b'\n')
  with pytest.raises(errors.UserError, match=message) as info:
    prompts.load(str(path))
  assert str(info.value).startswith(f'{path}, line 3')
  assert '\n' not in str(info.value)


def test_a_made_up_id_may_be_taken(tmp_path):
  source = _write(
      tmp_path / 'some.jsonl', {'id': 'some/2', 'text': 'a'}, {'text': 'b'}
  )
  with pytest.raises(errors.UserError, match="line 2: the id 'some/2'"):
    prompts.load(source)


@pytest.mark.parametrize('name, message', [
    ('gone.jsonl', 'cannot read the prompts of .*No such file'),
    ('folder.txt', 'cannot read the prompts of .*Is a directory'),
    ('empty.jsonl', 'empty.jsonl holds no prompts'),
    ('blank.txt', 'blank.txt holds no prompts'),
    ('table.csv', 'unknown prompt source .*humaneval, gsm8k, mtbench'),
])
def test_bad_file(tmp_path, name, message):
  (tmp_path / 'folder.txt').mkdir()
  (tmp_path / 'empty.jsonl').touch()
  (tmp_path / 'blank.txt').write_text('\n \n')
  (tmp_path / 'table.csv').write_text('a,b')
  with pytest.raises(errors.UserError, match=message):
    prompts.load(str(tmp_path / name))


def test_unknown_source():
  with pytest.raises(errors.UserError, match="unknown prompt source 'gsm9k'"):
    prompts.load('gsm9k')


def test_prompt_is_a_chat_or_a_text():
  user = ({'role': 'user', 'content': 'hi'},)
  for arguments in ({}, {'messages': user, 'text': 'hi'}):
    with pytest.raises(errors.UserError, match='either messages or a text'):
      prompts.Prompt('a', **arguments)
  with pytest.raises(errors.UserError, match="not the assistant's"):
    prompts.Prompt('a', user + ({'role': 'assistant', 'content': 'hi'},))
  with pytest.raises(errors.UserError, match="'a' is empty"):
    prompts.Prompt('a', text='\n')


@pytest.mark.parametrize('part, first, stop', [
    ('[2:5]', 2, 5), ('[:3]', 0, 3), ('[17:]', 17, 20), ('[:]', 0, 20),
    ('[15:99]', 15, 20),
])
def test_slices(tmp_path, part, first, stop):
  rows = [{'id': str(i), 'text': f'text {i}'} for i in range(20)]
  source = _write(tmp_path / 'many.jsonl', *rows) + part
  assert [p.id for p in prompts.load(source)] == [
      str(i) for i in range(first, stop)
  ]
  # Cut first, then shuffled and limited.
  some = prompts.load(source, limit=2, seed=1)
  assert {p.id for p in some} <= {str(i) for i in range(first, stop)}


@pytest.mark.parametrize('part, message', [
    ('[20:]', 'many.jsonl.*is empty'), ('[5:5]', 'is empty'),
    ('[-3:]', 'unknown prompt source'), ('[1:9:2]', 'unknown prompt source'),
    ('[a:b]', 'unknown prompt source'), ('[3]', 'unknown prompt source'),
])
def test_bad_slices(tmp_path, part, message):
  source = _write(tmp_path / 'many.jsonl', *[{'text': 'x'}] * 20) + part
  with pytest.raises(errors.UserError, match=message):
    prompts.load(source)


def test_standard_library_sources(monkeypatch):
  # A part of it, as all of it takes ten seconds to parse.
  some = [
      (name, text) for name, text in stdlib.sources()
      if name.startswith(('asyncio/', 'email/', 'json/'))
  ]
  monkeypatch.setattr(stdlib, 'sources', lambda: some)
  tasks = prompts.load('stdlib[:20]')
  assert len(tasks) == 20 and all(p.messages for p in tasks)
  assert all(p.id.startswith('stdlib/') for p in tasks)
  train, heldout = prompts.load('stdlib_train'), prompts.load('stdlib_heldout')
  assert all(p.text.startswith('def ') for p in train + heldout)
  assert not {p.id.split(':')[0] for p in train} & {
      p.id.split(':')[0] for p in heldout
  }
  assert len(train) + len(heldout) == len(prompts.load('stdlib'))
  assert len(train) > len(heldout) > 0


@pytest.mark.download
@pytest.mark.parametrize('source, number, first, words', [
    ('humaneval', 164, 'HumanEval/0', '```python\nfrom typing import List'),
    ('gsm8k', 1319, 'gsm8k/0', r'step by step, .* in \boxed{}.'),
    ('mtbench', 80, 'mtbench/81', 'Compose an engaging travel blog post'),
])
def test_benchmarks(fetch, source, number, first, words):
  fetch(source)
  loaded = prompts.load(source)
  assert len(loaded) == len({prompt.id for prompt in loaded}) == number
  assert all(
      [message['role'] for message in prompt.messages] == ['user']
      for prompt in loaded
  )
  assert loaded[0].id == first
  for part in words.split('.*'):
    assert part in loaded[0].messages[0]['content']
