"""The shapes in which prompts come in JSON lines."""

import json
from typing import Any

from dflash_jax import errors

_ROLES = {'human': 'user', 'gpt': 'assistant'}


def parse(line: str, where: str) -> dict[str, Any]:
  """Reads one line of a prompt file.

  The first of these keys that the row has decides: `turns`, `messages`,
  `conversations`, `prompt`, `text`. Other keys, `id` apart, are left alone.

  Args:
    line: a JSON object.
    where: file and line, for messages.

  Returns:
    `messages` (a tuple that ends with the user's last message) or `text`, and
    the `id` if there is one: the arguments of `prompts.Prompt`.

  Raises:
    errors.UserError: the row is malformed; names `where`, field and mend.
  """
  try:
    row = json.loads(line)
    # Half of a surrogate pair passes as JSON but can never be encoded.
    json.dumps(row, ensure_ascii=False).encode()
  except RecursionError as error:
    raise errors.UserError(f'{where}: nested too deeply') from error
  except UnicodeEncodeError as error:
    raise errors.UserError(
        f'{where}: a \\u escape is half of a pair; write the whole character'
    ) from error
  except json.JSONDecodeError as error:
    raise errors.UserError(
        f'{where}: not valid JSON ({error.msg} at column {error.colno}); every'
        ' line must be one JSON object'
    ) from error
  except ValueError as error:  # A number of more digits than Python reads.
    raise errors.UserError(f'{where}: {error}') from error
  if not isinstance(row, dict):
    raise errors.UserError(
        f'{where}: a JSON {type(row).__name__}; every line must be an object'
    )
  fields = _body(row, where)
  if row.get('id') is not None:
    if not isinstance(row['id'], str | int):
      raise errors.UserError(f'{where}: id must be a string or a number')
    fields['id'] = str(row['id'])
  return fields


def _body(row: dict[str, Any], where: str) -> dict[str, Any]:
  if 'turns' in row:
    turns = _list(row['turns'], 'turns', where)
    content = _string(turns[0], 'turns[0]', where)
    return {'messages': ({'role': 'user', 'content': content},)}
  for key in ('messages', 'conversations'):
    if key in row:
      return {'messages': _messages(row[key], key, where)}
  for key in ('prompt', 'text'):
    if key in row:
      return {'text': _string(row[key], key, where)}
  raise errors.UserError(
      f'{where}: no prompt among the keys {sorted(row)}; name it turns,'
      ' messages, conversations, prompt or text'
  )


def _messages(
    value: Any, key: str, where: str
) -> tuple[dict[str, str], ...]:
  messages = []
  for index, message in enumerate(_list(value, key, where)):
    field = f'{key}[{index}]'
    if not isinstance(message, dict):
      raise errors.UserError(f'{where}: {field} must be an object')
    role = _first(message, ('role', 'from'), field, where)
    messages.append({
        'role': _ROLES.get(role, role),
        'content': _first(message, ('content', 'value'), field, where),
    })
  while messages and messages[-1]['role'] == 'assistant':
    messages.pop()
  if not messages:
    raise errors.UserError(f'{where}: {key} has no message by the user')
  return tuple(messages)


def _first(
    message: dict[str, Any], keys: tuple[str, str], field: str, where: str
) -> str:
  for key in keys:
    if key in message:
      return _string(message[key], f'{field}.{key}', where)
  raise errors.UserError(f'{where}: {field} lacks {" or ".join(keys)}')


def _list(value: Any, field: str, where: str) -> list[Any]:
  if not isinstance(value, list) or not value:
    raise errors.UserError(f'{where}: {field} must be a list with an entry')
  return value


def _string(value: Any, field: str, where: str) -> str:
  if not isinstance(value, str):
    raise errors.UserError(
        f'{where}: {field} must be a string, not {type(value).__name__}'
    )
  return value
