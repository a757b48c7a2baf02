"""The driver, from nothing to a report, and what it says of bad input."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
    '--config.pretrain.num_steps=12', '--config.pretrain.hidden_size=32',
    '--config.pretrain.num_layers=6', '--config.pretrain.length=256',
    '--config.pretrain.intermediate_size=48', '--config.pretrain.vocab_size=512',
    '--config.regenerate.num_prompts=(24,)',
    '--config.regenerate.max_new_tokens=24', '--config.regenerate.batch_size=8',
    '--config.train.num_steps=12', '--config.train.batch_size=4',
    '--config.train.num_anchors=8', '--config.train.eval_every=12',
    '--config.train.save_every=6', '--config.train.eval_prompts=2',
    '--config.evaluate.num_prompts=(3,)', '--config.evaluate.max_new_tokens=20',
    '--config.evaluate.batch_size=2', '--config.generate.max_new_tokens=12',
]
KEYS = {
    'lossless', 'identical_to_ar', 'near_ties', 'num_prompts', 'block_size',
    'tau_mean', 'tau_pooled', 'tau_ci95', 'ideal_tau', 'recall_at_1',
    'recall_at_16', 'survival', 'conditional', 'ar_tokens_per_second',
    'spec_tokens_per_second', 'speedup', 'versions', 'device',
}


def drive(*arguments, config='tiny'):
  return subprocess.run(
      [sys.executable, 'experiments/run.py', f'--config=configs/{config}.py',
       *arguments],
      cwd=ROOT, capture_output=True, text=True,
  )


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A run of all stages, and what it printed."""
  workdir = tmp_path_factory.mktemp('run')
  stages = '("pretrain", "regenerate", "train", "evaluate", "generate")'
  done = drive(
      f'--workdir={workdir}', f'--config.stages={stages}',
      '--config.generate.prompt=def main(', *SMALL,
  )
  assert done.returncode == 0, done.stderr
  return workdir, done.stdout


@pytest.mark.slow
def test_a_whole_run(finished):
  workdir, printed = finished
  summary = json.loads((workdir / 'summary.json').read_text())
  assert KEYS <= set(summary)
  assert summary['lossless'] and summary['identical_to_ar']
  assert summary['num_prompts'] == 3
  assert summary['simulated_equals_decoded']
  assert len(summary['recall_at_1']) == summary['block_size'] - 1 == 7
  assert (workdir / 'report.html').stat().st_size > 10_000
  assert list(workdir.rglob('*.png'))
  rows = (workdir / 'metrics.jsonl').read_text().splitlines()
  assert any('eval/tau' in json.loads(row) for row in rows)
  for line in (
      'Baseline throughput', 'DFlash throughput', 'Decoding speed-up',
      'Average acceptance length', 'Acceptance length histogram',
      'block 8 (7 drafted)', '12 tokens in',
  ):
    assert line in printed


@pytest.mark.slow
def test_finished_stages_are_not_done_again(finished):
  workdir, _ = finished
  before = (workdir / 'corpus' / 'manifest.json').read_text()
  again = drive(
      f'--workdir={workdir}', '--config.stages=("regenerate",)', *SMALL
  )
  assert again.returncode == 0, again.stderr
  assert (workdir / 'corpus' / 'manifest.json').read_text() == before


@pytest.mark.parametrize('arguments, message', [
    (['--workdir={tmp}', '--config.stages=("fly",)'], "stages names ['fly']"),
    ([], '--workdir is missing'),
    (['--workdir={tmp}', '--config.stages=("regenerate",)'],
     'run the pretrain stage first'),
    (['--workdir={tmp}', '--config.target=/none.gguf',
      '--config.stages=("regenerate",)'], '/none.gguf: no such file'),
    (['--workdir={tmp}/file/run'], 'cannot write'),
    (['--workdir={tmp}', '--config.stages=("regenerate",)',
      '--config.target={tmp}/cut.gguf'], 'cut.gguf: cannot be read as GGUF'),
])
def test_bad_input_is_one_clear_line(tmp_path, arguments, message):
  (tmp_path / 'file').write_text('')
  (tmp_path / 'cut.gguf').write_bytes(b'GGUF\x03\x00')
  done = drive(*(argument.format(tmp=tmp_path) for argument in arguments))
  assert done.returncode == 2
  (line,) = [l for l in done.stderr.splitlines() if l.startswith('error: ')]
  assert message in line
  assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_bad_prompts_and_drafters(finished, tmp_path):
  workdir, _ = finished
  (tmp_path / 'bad.jsonl').write_text('{"turns": ["a"]}\n{"turns": \n')
  (tmp_path / 'long.txt').write_text('x = 1; ' * 2000)
  for source, message in (
      ('bad.jsonl', 'bad.jsonl, line 2'), ('long.txt', 'exceeds the context')
  ):
    done = drive(
        f'--workdir={workdir}', '--config.stages=("evaluate",)', *SMALL,
        f'--config.evaluate.prompts=("{tmp_path / source}",)',
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
  done = drive(f'--workdir={workdir}', '--config.stages=("evaluate",)',
               '--config.draft=/nowhere', *SMALL)
  assert done.returncode == 2
  assert '/nowhere/config.json' in done.stderr
