"""The report's pictures, each on a canvas of its own and not through pyplot."""

from collections.abc import Mapping, Sequence
import io
import math
import os
from typing import Any

from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import ticker
from matplotlib.backends import backend_agg

from dflash_jax import files
from dflash_jax.evaluate import metrics

# DFlash 2 blog: DFlash for Qwen3-4B, 5 layers, GSM8K, greedy; each slot
# conditioned on all earlier ones being right.
REFERENCE = {
    1: [0.854, 0.803, 0.794, 0.783, 0.775, 0.759, 0.729],
    16: [0.995, 0.973, 0.948, 0.926, 0.908, 0.894, 0.878],
}
_BLUE, _ORANGE, _INK, _MUTED, _GRID = (
    '#2f6db3', '#d9762b', '#22272e', '#8b949e', '#e7e9ec'
)


def suffix_decay(summary: Mapping[str, Any], path: str | os.PathLike) -> None:
  """Recall@1 and @16 by slot over the published ones, as a PNG.

  Args:
    summary: see `summary.summarize`.
    path: PNG to write.
  """
  figure, (axes,) = _figure(1, (7.6, 4.5))
  for k, color in ((1, _BLUE), (metrics.CANDIDATES, _ORANGE)):
    rates = summary[f'recall_at_{k}']
    axes.plot(
        range(1, 1 + len(rates)),
        [math.nan if rate is None else rate for rate in rates],
        color=color, linewidth=2.2, marker='o', markersize=5, zorder=3,
        label=f'recall@{k} ({metrics.expected_length(rates):.2f})',
        clip_on=False,
    )
  for rates in REFERENCE.values():
    (line,) = axes.plot(
        range(1, 1 + len(rates)), rates, color=_MUTED, linewidth=1, zorder=2
    )
  line.set_label('Qwen3-4B, DFlash 2 blog (4.27, 6.79)')
  last = max(summary['block_size'] - 1, len(REFERENCE[1]))
  axes.set(xlim=(0.7, last + 0.3), ylim=(0, 1.03), xlabel='slot of the block')
  axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
  axes.xaxis.set_major_locator(ticker.MultipleLocator(1))
  _title(axes, 'Suffix decay', 'true token in the top k, given that all earlier'
         ' ones were (in brackets: expected tokens a round)')
  axes.legend(
      loc='upper center', bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False,
      fontsize=9.5, labelcolor=_INK, columnspacing=2.5,
  )
  figure.subplots_adjust(bottom=0.19)
  _save(figure, path)


def accepted_histogram(
    summary: Mapping[str, Any], path: str | os.PathLike
) -> None:
  """Share of rounds by how many tokens they emitted, as a PNG.

  Args:
    summary: see `summary.summarize`.
    path: PNG to write.
  """
  counts = summary['produced_histogram']
  total = max(sum(counts), 1)
  shares = [count / total for count in counts]
  lengths = range(1, len(counts) + 1)
  figure, (axes,) = _figure(1, (7.6, 3.9))
  axes.bar(lengths, shares, width=0.72, color=_BLUE, zorder=2)
  for length, share in zip(lengths, shares):
    axes.annotate(
        f'{share:.1%}', (length, share), (0, 4), textcoords='offset points',
        ha='center', color=_INK, fontsize=8.5,
        bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.8},
    )
  tau = summary['tau_pooled']
  if tau is not None:
    axes.axvline(tau, color=_ORANGE, linewidth=1.6, linestyle='--', zorder=1)
    axes.annotate(
        f'mean {tau:.2f}', (tau, 1), (6, -10), textcoords='offset points',
        xycoords=axes.get_xaxis_transform(), color=_ORANGE, fontsize=9.5,
    )
  axes.set(
      xlim=(0.4, len(counts) + 0.6), ylim=(0, 1.22 * max(max(shares), 0.1)),
      xlabel='tokens emitted by a round: accepted drafts + 1 bonus',
  )
  axes.xaxis.set_major_locator(ticker.MultipleLocator(1))
  axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
  _title(axes, 'Accepted lengths', f'share of {sum(counts):,} verify rounds')
  _save(figure, path)


def training_curves(
    metrics_rows: Sequence[Mapping[str, Any]], path: str | os.PathLike
) -> None:
  """Loss, accuracy by slot and true-decode tau over steps, as a PNG.

  A metric that no row has leaves its panel with a note.

  Args:
    metrics_rows: rows of the metrics JSONL: `step`, and any of `loss`,
      `accuracy` (list by slot, first drafted token first) and `eval/tau`.
    path: PNG to write.
  """
  figure, (loss, accuracy, tau) = _figure(3, (12.6, 3.9))
  _title(loss, 'Training loss', 'weighted by slot')
  _line(loss, metrics_rows, 'loss', color=_BLUE)
  _title(accuracy, 'Training accuracy', 'by slot, no conditioning')
  accuracy.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
  by_slot = [row['accuracy'] for row in metrics_rows if 'accuracy' in row]
  slots = len(by_slot[0]) if by_slot else 1
  for slot in range(slots):
    shade = 0.6 * slot / slots
    color = tuple(c + (1 - c) * shade for c in (0.12, 0.33, 0.58))
    end = f'slot {slot + 1}' if slot in (0, slots - 1) else ''
    _line(accuracy, metrics_rows, 'accuracy', slot, color=color, end=end)
  _title(tau, 'Held-out acceptance length', 'true decoding; 1 is no gain')
  _line(tau, metrics_rows, 'eval/tau', color=_ORANGE, marker='o', end='{:.2f}')
  for axes, bottom in ((loss, 0), (accuracy, 0), (tau, 1)):
    last = max((row['step'] for row in metrics_rows), default=1)
    axes.set(xlabel='step', xlim=(0, 1.02 * last))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.set_ylim(bottom=bottom, top=max(axes.get_ylim()[1], bottom + 0.05))
  figure.subplots_adjust(wspace=0.28, left=0.05)
  _save(figure, path)


def _line(axes, rows, key, slot=None, marker=None, color=None, end='') -> None:
  """Draws `key` over steps, `end` at its end; a note where no row has it."""
  points = [
      (row['step'], row[key] if slot is None else row[key][slot])
      for row in rows
      if row.get(key) is not None
  ]
  if not points:
    axes.text(
        0.5, 0.5, 'not recorded', transform=axes.transAxes, ha='center',
        color=_MUTED, fontsize=10,
    )
    axes.set_yticks([])
    return
  if len(points) == 1:
    marker = 'o'  # a line of one point would be invisible
  axes.plot(
      *zip(*points), color=color, linewidth=1.7, marker=marker, markersize=4.5,
      clip_on=False,
  )
  axes.annotate(
      end.format(points[-1][1]), points[-1], (7, 0), color=color, fontsize=9,
      textcoords='offset points', va='center', annotation_clip=False,
  )


def _figure(
    panels: int, inches: tuple[float, float]
) -> tuple[figure_lib.Figure, list[axes_lib.Axes]]:
  figure = figure_lib.Figure(figsize=inches, dpi=144, facecolor='white')
  backend_agg.FigureCanvasAgg(figure)
  row = figure.subplots(1, panels, squeeze=False)[0]
  figure.subplots_adjust(left=0.075, right=0.965, top=0.83, bottom=0.135)
  for axes in row:
    axes.spines[['top', 'right', 'left']].set_visible(False)
    axes.spines['bottom'].set_color(_MUTED)
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    axes.xaxis.label.set(color=_INK, fontsize=9.5)
    axes.grid(axis='y', color=_GRID)
    axes.set_axisbelow(True)
  return figure, list(row)


def _title(axes: axes_lib.Axes, title: str, subtitle: str) -> None:
  for text, offset, style in (
      (title, 22, {'fontsize': 12, 'fontweight': 'bold', 'color': _INK}),
      (subtitle, 8, {'fontsize': 9, 'color': '#57606a'}),
  ):
    axes.annotate(
        text, (0, 1), (0, offset), xycoords='axes fraction',
        textcoords='offset points', **style,
    )


def _save(figure: figure_lib.Figure, path: str | os.PathLike) -> None:
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png')
  files.atomic_write(path, buffer.getvalue())
