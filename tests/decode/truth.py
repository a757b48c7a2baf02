"""What the tiny target says, by feeding it whole sequences without a cache."""

import functools

import jax
import numpy as np

from tests import tiny

PROMPTS = ([5, 6, 7], [9] * 18, [1], list(range(11)))
LENGTH = 40
# Token 0 ends rows 0 and 3 in mid-output, after 15 and 10 tokens, and token 32
# row 1 after 30; row 2 says neither. Prompt 3 holds a 0 itself.
STOP_IDS = (0, 32)


@functools.cache
def continuations():
  """The greedy tokens after each prompt, `[B, LENGTH]`, stops ignored."""
  module, params = tiny.target()

  @jax.jit
  def best(params, tokens):
    variables = {'params': params}
    hidden, _, _ = module.apply(variables, tokens)
    logits = module.apply(variables, hidden, method='head')
    return logits.argmax(axis=-1)

  rows = np.zeros((len(PROMPTS), 64), np.int32)
  ends = np.array([len(prompt) for prompt in PROMPTS])
  for row, prompt in zip(rows, PROMPTS):
    row[: len(prompt)] = prompt
  index = np.arange(len(PROMPTS))
  for step in range(LENGTH):
    rows[index, ends + step] = best(params, rows)[index, ends + step - 1]
  return [row[end : end + LENGTH].tolist() for row, end in zip(rows, ends)]


def expected(row, max_new_tokens):
  """What a request gets: cut by its budget and behind its first stop."""
  tokens = continuations()[row][:max_new_tokens]
  stops = [at for at, token in enumerate(tokens) if token in STOP_IDS]
  return tokens[: stops[0] + 1] if stops else tokens


def rounds(row, max_new_tokens, plan):
  """Tokens committed in each round, if round r accepts `plan[r]` drafts."""
  left, produced = len(expected(row, max_new_tokens)) - 1, []
  while left:
    produced.append(min(plan[len(produced)] + 1, left))
    left -= produced[-1]
  return produced
