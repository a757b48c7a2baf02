"""A run's `summary.json`, pictures and self-contained `report.html`."""

import base64
from collections.abc import Callable, Mapping, Sequence
import html
import json
import os
import pathlib
import string
from typing import Any

from dflash_jax import files
from dflash_jax.evaluate import metrics
from dflash_jax.evaluate import plots
from dflash_jax.evaluate import samples
from dflash_jax.evaluate.summary import number

_PAGE = string.Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>DFlash report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
  color: #22272e; max-width: 960px; margin: 2em auto; padding: 0 1.2em }
h1 { margin-bottom: 0 } h2 { margin: 2.2em 0 .5em; font-size: 1.25em }
.muted, th { color: #57606a; font-weight: normal }
.verdict { border-left: 5px solid; padding: .6em 1em; margin: 1.3em 0 }
.good { border-color: #2e8b57; background: #edf7f1 }
.bad { border-color: #c93c37; background: #fdeeee; font-weight: bold }
.cards { display: flex; flex-wrap: wrap; gap: 12px }
.card { flex: 1 1 180px; border: 1px solid #dde1e6; border-radius: 8px;
  padding: .8em 1em } .card div { font-size: 1.9em; font-weight: 600 }
table { border-collapse: collapse; width: 100%; font-size: 14px }
td, th { padding: .3em .7em; border-bottom: 1px solid #e7e9ec;
  text-align: left; vertical-align: top }
.slots td, .slots th, .value { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums }
img { max-width: 100%; margin-top: .8em }
pre, .text { font: 13px/1.6 "DejaVu Sans Mono", Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; background: #fafbfc;
  border: 1px solid #e7e9ec; border-radius: 6px; padding: .8em 1em;
  max-height: 26em; overflow: auto }
.even { background: #eaf1fa } .even b { background: #bcd4f0 }
.odd { background: #fdf1e4 } .odd b { background: #f8d3a9 }
b { font-weight: inherit } summary { cursor: pointer }
</style></head><body>
<h1>DFlash report</h1>
<p class="muted">$subtitle</p>
$verdict
<div class="cards">$cards</div>
<h2>Figures and what they mean</h2>
<table>$figures</table>
<h2>By slot</h2>
<p class="muted">Slot k predicts the k-th token after the anchor. Recalls take
every response position as anchor; survival and acceptance come from the rounds
of the real decode that no stop token or budget cut.</p>
<table class="slots">$slots</table>
$pictures
<h2>Where the time went</h2>
$time
<h2>Samples</h2>
<p class="muted">Spread evenly from the lowest to the highest acceptance length,
not chosen. Shades alternate by round; <span class="even"><b>dark</b> tokens
were drafted and accepted, light ones</span> are the target's own. Very long
runs can also mean that the text repeats itself.</p>
$samples
<h2>How it was made</h2>
<details><summary>Configuration</summary><pre>$config</pre></details>
<details><summary>Versions</summary><pre>$versions</pre></details>
</body></html>
""")

_DEFINITIONS = {
    'tau_mean': 'acceptance length: tokens a verify round emits, bonus'
    ' included; mean over requests of each request\'s mean (z-lab)',
    'tau_pooled': 'all tokens over all rounds (DeepSpec, SGLang)',
    'tau_pooled_before_cut': 'the same, counting drafts that were accepted and'
    ' then cut by a stop token or the budget (vLLM)',
    'tau_mean_uncut': 'tau_mean without the rounds that were cut',
    'tau_pooled_uncut': 'tau_pooled without them; 1 + the sum of survival',
    'ideal_tau': 'tau_mean if a selector always found the true token among the'
    ' drafter\'s top 16',
    'simulated_tau': 'greedy decode replayed offline from the ranks; must equal'
    ' tau_mean',
    'draft_acceptance': 'accepted over drafted tokens; falls as blocks grow',
    'ar_tokens_per_second': 'block 1 in the same engine; decode after prefill,'
    ' tokens - 1 over seconds, pooled',
    'spec_tokens_per_second': 'the same for the speculative decode',
    'speedup': 'the ratio of these two',
    'round_cost': 'time of a round in autoregressive steps: the acceptance'
    ' length at which speculation breaks even',
}

_CPU = """<p>This ran on a CPU, where a verify pass over a block costs much more
than one decode step: products with a few rows are bound by arithmetic there,
not by reading the weights. <strong>The ratio above is this machine's, not the
method's</strong>; on an accelerator a block costs little more than one token,
and the speed-up comes close to the acceptance length.</p>"""


def write_report(
    run_dir: str | os.PathLike,
    summary: Mapping[str, Any],
    requests: Sequence[metrics.Request],
    metrics_rows: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    to_bytes: Callable[[Sequence[int]], bytes],
) -> pathlib.Path:
  """Writes `summary.json`, the PNG plots and `report.html`, each atomically.

  Args:
    run_dir: folder to write to.
    summary: see `summary.summarize`.
    requests: the speculative decode; samples are taken from it.
    metrics_rows: training metrics, see `plots.training_curves`; empty if
      nothing was trained.
    config: of the run, shown as JSON.
    to_bytes: UTF-8 bytes of token ids; a token may hold part of a character.

  Returns:
    Path of the report.
  """
  run_dir = pathlib.Path(run_dir)
  files.atomic_write(
      run_dir / 'summary.json',
      json.dumps(summary, indent=2, allow_nan=False) + '\n',
  )
  plots.suffix_decay(summary, run_dir / 'suffix_decay.png')
  plots.accepted_histogram(summary, run_dir / 'accepted_histogram.png')
  pictures = ['suffix_decay', 'accepted_histogram']
  if metrics_rows:
    plots.training_curves(metrics_rows, run_dir / 'training_curves.png')
    pictures.append('training_curves')
  block = summary['block_size']
  page = _PAGE.substitute(
      subtitle=html.escape(
          f'{summary["num_prompts"]} prompts, {summary["tokens_total"]:,}'
          f' tokens, block {block} ({block - 1} drafted), on'
          f' {summary["device"]}'
      ),
      verdict=_verdict(summary),
      cards=_cards(summary),
      figures=''.join(
          f'<tr><td>{name}</td><td class="value">{number(summary[name])}</td>'
          f'<td class="muted">{definition}</td></tr>'
          for name, definition in _DEFINITIONS.items()
      ),
      slots=_slots(summary),
      pictures=''.join(_picture(run_dir / f'{name}.png') for name in pictures),
      time=_time(summary),
      samples=''.join(
          samples.render(r, to_bytes) for r in samples.spread(requests)
      ),
      config=html.escape(json.dumps(config, indent=2, default=str)),
      versions=html.escape(json.dumps(summary['versions'], indent=2)),
  )
  path = run_dir / 'report.html'
  files.atomic_write(path, page)
  return path


def _verdict(summary: Mapping[str, Any]) -> str:
  same = 'the same as' if summary['identical_to_ar'] else 'not the same as'
  kind, claim = 'good', 'Lossless: every emitted token is'
  if not summary['lossless']:
    kind, claim = 'bad', 'NOT LOSSLESS: some emitted token is not'
  return (
      f'<p class="verdict {kind}">{claim} the target\'s argmax after the'
      f' emitted text ({summary["near_ties"]} near-ties under 1e-4 apart).'
      f' Token for token {same} the autoregressive decode.</p>'
  )


def _cards(summary: Mapping[str, Any]) -> str:
  interval = summary['tau_ci95']
  bounds = 'too few requests for an interval'
  if interval:
    bounds = '95% interval {:.2f} to {:.2f}'.format(*interval)
  cards = [
      ('acceptance length', number(summary['tau_mean']), bounds),
      ('ideal selector', number(summary['ideal_tau']), 'among 16 candidates'),
      ('speed-up', number(summary['speedup'], '×'), 'over block 1, here'),
      ('tokens/s', number(summary['spec_tokens_per_second']),
       f'{number(summary["ar_tokens_per_second"])} autoregressive'),
  ]
  return ''.join(
      f'<div class="card">{name}<div>{value}</div>'
      f'<span class="muted">{note}</span></div>'
      for name, value, note in cards
  )


def _slots(summary: Mapping[str, Any]) -> str:
  columns = {
      'recall@1': 'recall_at_1',
      'recall@16': 'recall_at_16',
      'recall@1, marginal': 'recall_at_1_marginal',
      'recall@16, marginal': 'recall_at_16_marginal',
      'survival': 'survival',
      'acceptance': 'conditional',
  }
  heads = ''.join(f'<th>{head}</th>' for head in ('slot', *columns))
  rows = [f'<tr>{heads}</tr>']
  for slot, rates in enumerate(zip(*(summary[k] for k in columns.values())), 1):
    cells = ('-' if rate is None else f'{rate:.1%}' for rate in rates)
    line = ''.join(f'<td>{cell}</td>' for cell in (slot, *cells))
    rows.append(f'<tr>{line}</tr>')
  return ''.join(rows)


def _picture(path: pathlib.Path) -> str:
  data = base64.b64encode(path.read_bytes()).decode()
  return f'<img alt="{path.stem}" src="data:image/png;base64,{data}">'


def _time(summary: Mapping[str, Any]) -> str:
  cost, block = summary['round_cost'], summary['block_size']
  if cost is None:
    return '<p>Nothing was decoded, so there is nothing to time.</p>'
  step = 1000 / summary['ar_tokens_per_second']
  return (
      f'<p>An autoregressive step took {step:.1f} ms a request, a round (draft'
      f' {block - 1} tokens, verify {block} rows, commit) {step * cost:.1f} ms:'
      f' {cost:.2f} steps. It emitted {summary["tau_pooled"]:.2f} tokens, so'
      f' the speed-up is {summary["tau_pooled"]:.2f} / {cost:.2f} ='
      f' {summary["speedup"]:.2f}.</p>'
  ) + (_CPU if 'cpu' in summary['device'].lower() else '')
