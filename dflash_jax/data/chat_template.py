"""Chat templates: untrusted jinja2 source out of a model file."""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import ext
from jinja2 import sandbox

from dflash_jax import errors


def render(
    template: str, messages: Sequence[Mapping[str, str]], **variables: Any
) -> str:
  """Returns the chat as the one text that the model was trained on.

  The environment is that of `transformers` (sandboxed and immutable, blocks
  trimmed, loop controls, `raise_exception`, `strftime_now`, a `tojson` that
  leaves HTML characters alone), so that the same template gives the same text.

  Args:
    template: source of the template.
    messages: chat messages, each with `role` and `content`.
    **variables: the template's other variables.

  Raises:
    errors.UserError: the template does not parse, refuses the messages, or
      does what the sandbox forbids.
  """
  try:
    return _compile(template).render(
        messages=[dict(message) for message in messages], **variables
    )
  except Exception as error:  # The template is foreign code.
    roles = ', '.join(message['role'] for message in messages)
    raise errors.UserError(
        f'the chat template of the model fails on messages of roles {roles}:'
        f' {error}; mend the messages, or use plain text prompts'
    ) from error


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
  environment = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
  )
  environment.filters['tojson'] = _tojson
  environment.globals['raise_exception'] = _raise_exception
  environment.globals['strftime_now'] = _strftime_now
  return environment.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
  return json.dumps(
      value,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
  )


def _raise_exception(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
  return datetime.datetime.now().strftime(layout)
