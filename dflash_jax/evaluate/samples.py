"""Generations as HTML that shows which tokens each round brought."""

from collections.abc import Callable, Sequence
import codecs
import html

import numpy as np

from dflash_jax.evaluate import metrics

NUM_SAMPLES = 5


def spread(requests: Sequence[metrics.Request]) -> list[metrics.Request]:
  """Up to `NUM_SAMPLES` requests, evenly spaced by acceptance length."""
  ranked = sorted(
      (r for r in requests if r.produced), key=lambda r: np.mean(r.produced)
  )
  count = min(NUM_SAMPLES, len(ranked))
  return [ranked[round(i)] for i in np.linspace(0, len(ranked) - 1, count)]


def render(
    request: metrics.Request, to_bytes: Callable[[Sequence[int]], bytes]
) -> str:
  """A heading and the text, one span a round, accepted drafts in `<b>`.

  A character whose bytes straddle rounds is shown with the round that ends it.

  Args:
    request: to show; has at least one round.
    to_bytes: UTF-8 bytes of token ids.
  """
  decoder = codecs.getincrementaldecoder('utf-8')('replace')

  def text(start: int, stop: int, final: bool = False) -> str:
    data = to_bytes(request.tokens[start:stop])
    return html.escape(decoder.decode(data, final))

  spans, position = [text(0, 1)], 1
  rounds = list(zip(request.produced, request.accepted))
  for i, (produced, accepted) in enumerate(rounds):
    drafted, end = position + min(accepted, produced), position + produced
    spans.append(
        f'<span class="{("even", "odd")[i % 2]}" title="round {i + 1}:'
        f' {accepted} accepted, {produced} emitted">'
        f'<b>{text(position, drafted)}</b>'
        f'{text(drafted, end, final=i + 1 == len(rounds))}</span>'
    )
    position = end
  return (
      f'<p><strong>{html.escape(request.id)}</strong> <span class="muted">'
      f'{request.prompt_tokens} prompt tokens, {len(request.tokens)} emitted in'
      f' {len(rounds)} rounds: acceptance length'
      f' {np.mean(request.produced):.2f}</span></p>'
      f'<div class="text">{"".join(spans)}</div>'
  )
