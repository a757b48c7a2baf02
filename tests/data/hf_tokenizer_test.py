"""Tokenizers in Hugging Face folders."""

import json

import pytest
import tokenizers

from dflash_jax import errors
from dflash_jax.data import bpe
from dflash_jax.data import prompts
from dflash_jax.data import tokenizer as tokenizer_lib

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    '{% if enable_thinking is defined and not enable_thinking %}'
    'quiet{% endif %}'
)
TEXT = 'def naïve(x):\n  return "日本" * x  # 🙂'
SPECIAL = ['<s>', '<end>', '<pad>', '<spare>']


@pytest.fixture(scope='module')
def backend():
  trained = bpe.train_bpe([TEXT * 3, 'import this\n' * 5], 300).backend
  made = tokenizers.Tokenizer.from_str(trained.to_str())
  made.add_special_tokens(SPECIAL)
  return made


@pytest.fixture
def folder(backend, tmp_path):
  backend.save(str(tmp_path / 'tokenizer.json'))
  configure(tmp_path)
  return tmp_path


def configure(folder, **changes):
  settings = {
      'bos_token': '<s>', 'eos_token': {'content': '<end>', 'lstrip': False},
      'pad_token': None, 'chat_template': TEMPLATE,
  }
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings | changes))


def load(folder, vocab_size=512, eos_ids=None):
  if eos_ids is None:
    eos_ids = (2,)
  return tokenizer_lib.Tokenizer.from_huggingface(folder, vocab_size, eos_ids)


def test_text_and_special_tokens(folder, backend):
  found = load(folder)
  ids = found.encode(TEXT + '<end>')
  assert ids == backend.encode(TEXT + '<end>').ids
  assert found.decode(ids) == TEXT + '<end>'
  end = backend.token_to_id('<end>')
  assert ids[-1] == end and found.eos_ids == (end, 2)
  assert found.bos_id == backend.token_to_id('<s>') and not found.add_bos
  assert found.pad_id == 2 and found.unk_id is None
  assert set(SPECIAL) <= set(found.special_tokens)


def test_rows_above_the_tokenizer_fill_up_and_serve_as_masks(folder, backend):
  size = backend.get_vocab_size()
  found = load(folder, size + 3)
  assert found.unused_ids == (size, size + 1, size + 2)
  assert found.decode([size + 2, *found.encode('x')]) == 'x'
  with pytest.raises(ValueError, match='do not all lie'):
    found.decode([size + 3])


def test_templates_and_their_switches(folder):
  chat = prompts.Prompt('a', ({'role': 'user', 'content': 'import'},))
  found = load(folder)
  assert found.decode(found.encode_prompt(chat)) == '<s>import'
  ids = found.encode_prompt(chat, enable_thinking=False)
  assert found.decode(ids) == '<s>importquiet'
  configure(folder, chat_template=[
      {'name': 'tools', 'template': 'no'},
      {'name': 'default', 'template': 'yes'},
  ])
  assert load(folder).render(chat.messages) == 'yes'
  (folder / 'chat_template.jinja').write_text('own')
  assert load(folder).render(chat.messages) == 'own'


def test_a_leading_bos(folder, backend):
  bos = backend.token_to_id('<s>')
  made = tokenizers.Tokenizer.from_str(backend.to_str())
  made.post_processor = tokenizers.processors.TemplateProcessing(
      single='<s> $A', special_tokens=[('<s>', bos)]
  )
  made.save(str(folder / 'tokenizer.json'))
  found = load(folder)
  assert found.encode('x', add_special=True) == [bos, *found.encode('x')]


@pytest.mark.parametrize('changes, message', [
    ({'eos_token': '<gone>'}, "eos_token is '<gone>', which tokenizer.json"),
    ({'chat_template': [{'name': 'rag', 'template': ''}]}, 'and no default'),
])
def test_bad_configurations(folder, changes, message):
  configure(folder, **changes)
  with pytest.raises(errors.UserError, match=message) as caught:
    load(folder)
  assert 'tokenizer_config.json' in str(caught.value)


def test_bad_folders(folder, backend):
  with pytest.raises(errors.UserError, match='belong to different models'):
    load(folder, backend.get_vocab_size() - 1)
  with pytest.raises(errors.UserError, match='belong to different models'):
    load(folder, 512, (512,))
  (folder / 'tokenizer_config.json').unlink()
  with pytest.raises(errors.UserError, match='config.json: cannot be'):
    load(folder)
  tokenizers.Tokenizer(tokenizers.models.BPE()).save(
      str(folder / 'tokenizer.json')
  )
  with pytest.raises(errors.UserError, match='not a byte-level vocabulary'):
    load(folder)
  (folder / 'tokenizer.json').write_text('{')
  with pytest.raises(errors.UserError, match='tokenizer.json: cannot be read'):
    load(folder)
