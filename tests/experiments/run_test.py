"""The driver, from nothing to a report, and what it says of bad input."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import traceback
from unittest import mock

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dflash_jax.checkpoint import drafter as drafter_files
from dflash_jax.data import corpus
from experiments import certify
from experiments import run as driver
from experiments import workspace
from tests import tiny

# ml_collections loads configuration files in a manner that Python drops.
pytestmark = pytest.mark.filterwarnings(
    r'ignore:the load_module\(\) method:DeprecationWarning'
)

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
    '--config.pretrain.num_steps=30', '--config.pretrain.hidden_size=32',
    '--config.pretrain.num_layers=3', '--config.pretrain.length=128',
    '--config.pretrain.num_heads=2', '--config.pretrain.num_kv_heads=1',
    '--config.pretrain.intermediate_size=48', '--config.pretrain.batch_size=2',
    '--config.pretrain.vocab_size=512', '--config.drafter.num_layers=1',
    '--config.drafter.target_layer_ids=(0, 2)',
    '--config.regenerate.num_prompts=(32,)',
    '--config.regenerate.max_new_tokens=24', '--config.regenerate.batch_size=16',
    '--config.train.num_steps=20', '--config.train.batch_size=4',
    '--config.train.num_anchors=8', '--config.train.eval_every=20',
    '--config.train.save_every=10', '--config.train.eval_prompts=2',
    '--config.evaluate.num_prompts=(3,)', '--config.evaluate.max_new_tokens=20',
    '--config.evaluate.batch_size=3', '--config.generate.max_new_tokens=12',
    '--config.generate.prompt=def main(',
]
KEYS = {
    'lossless', 'identical_to_ar', 'near_ties', 'num_prompts', 'block_size',
    'tau_mean', 'tau_pooled', 'tau_ci95', 'ideal_tau', 'recall_at_1',
    'recall_at_16', 'survival', 'conditional', 'ar_tokens_per_second',
    'spec_tokens_per_second', 'speedup', 'versions', 'device',
}


def command(*arguments, config='tiny'):
  return ['run.py', f'--config={ROOT}/configs/{config}.py', *arguments]


def stages(*names):
  return f'--config.stages={names!r}'


def spawn(*arguments):
  """The driver as users start it; compiled as the tests are."""
  _, *arguments = command(*arguments)
  return subprocess.run(
      [sys.executable, 'experiments/run.py', *arguments],
      cwd=ROOT, capture_output=True, text=True,
      env={'JAX_DISABLE_MOST_OPTIMIZATIONS': '1', **os.environ},
  )


def parse(line):
  """Sets the flags anew: nothing stays from one command line to the next."""
  flags.FLAGS.unparse_flags()
  for name in [n for n in flags.FLAGS if n.startswith('config.')]:
    delattr(flags.FLAGS, name)  # An override is a flag of its own.
  flags.FLAGS['workdir'].unparse()
  # Config flags read overrides from `sys.argv`.
  with mock.patch.object(sys, 'argv', line):
    return flags.FLAGS(line)


def drive(*arguments, config='tiny'):
  """The same in this process, which spares its start."""
  line = command(*arguments, config=config)
  out, err, code = io.StringIO(), io.StringIO(), 0
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      driver.main(parse(line))
    except SystemExit as stop:
      code = stop.code
    except Exception:  # What `app.run` would make of it.
      traceback.print_exc()
      code = 1
  return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())


def check_error(done, message):
  assert done.returncode == 2, done.stderr
  assert 'Traceback' not in done.stderr
  assert done.stderr.count('error: ') == 1
  line = done.stderr.splitlines()[-1]  # Progress bars come before it.
  assert line.startswith('error: ') and re.search(message, line), line


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A run of all stages, and what it printed."""
  workdir = tmp_path_factory.mktemp('run')
  done = spawn(
      f'--workdir={workdir}', *SMALL,
      stages('pretrain', 'regenerate', 'train', 'evaluate', 'generate'),
  )
  assert done.returncode == 0, done.stderr
  assert 'Warning' not in done.stderr
  return workdir, done.stdout


@pytest.fixture
def copy(finished, tmp_path):
  """A copy of the finished run, to break."""
  return shutil.copytree(finished[0], tmp_path / 'copy')


@pytest.mark.slow
def test_a_whole_run(finished):
  workdir, printed = finished
  summary = json.loads((workdir / 'summary.json').read_text())
  assert KEYS <= set(summary)
  assert summary['lossless'] is True and summary['identical_to_ar'] is True
  assert summary['near_ties'] == 0 and summary['num_prompts'] == 3
  assert summary['simulated_equals_decoded']
  assert summary['block_size'] == 8
  for name in ('recall_at_1', 'recall_at_16', 'survival', 'conditional'):
    assert len(summary[name]) == 7
  assert 1 <= summary['tau_mean'] <= summary['ideal_tau'] <= 8
  assert summary['speedup'] == pytest.approx(
      summary['spec_tokens_per_second'] / summary['ar_tokens_per_second']
  )
  assert {'python', 'jax', 'flax'} <= set(summary['versions'])
  assert (workdir / 'report.html').stat().st_size > 10_000
  images = list(workdir.rglob('*.png'))
  assert len(images) >= 3
  assert all(p.read_bytes().startswith(b'\x89PNG') for p in images)
  rows = [
      json.loads(row)
      for row in (workdir / 'metrics.jsonl').read_text().splitlines()
  ]
  assert [r['step'] for r in rows if 'loss' in r] == [10, 20]
  assert [r['step'] for r in rows if 'eval/tau' in r] == [20]


@pytest.mark.slow
def test_the_console(finished):
  _, printed = finished
  lines = printed.splitlines()
  names = (
      'Baseline throughput', 'DFlash throughput', 'Decoding speed-up',
      'Average acceptance length', 'Acceptance length histogram',
  )
  found = [
      i for i, line in enumerate(lines) if line.startswith(tuple(names))
  ]
  assert len(found) == 5 and found[-1] - found[0] == 4
  assert all(lines[i].startswith(name) for i, name in zip(found, names))
  assert [line for line in lines if line.startswith('== ')] == [
      f'== {name} =='
      for name in ('pretrain', 'regenerate', 'train', 'evaluate', 'generate')
  ]
  assert 'block 8 (7 drafted), taps [0, 2], mask id 1' in printed
  assert re.search(r'\[12 tokens in \d+ rounds, tau \d\.\d\d\]', lines[-1])


@pytest.mark.slow
def test_a_finished_run_is_not_done_again(finished, copy):
  workdir, _ = finished
  done = drive(
      f'--workdir={copy}', *SMALL, stages('pretrain', 'regenerate', 'train')
  )
  assert done.returncode == 0, done.stderr
  same = ('corpus/manifest.json', 'metrics.jsonl', 'target/metrics.jsonl',
          'drafter/model.safetensors', 'drafter/config.json')
  for name in same:
    assert (copy / name).read_bytes() == (workdir / name).read_bytes(), name


@pytest.mark.slow
def test_one_stage_alone(finished, copy):
  before = json.loads((copy / 'summary.json').read_text())
  for name in ('summary.json', 'report.html'):
    (copy / name).unlink()
  done = drive(f'--workdir={copy}', *SMALL, stages('evaluate'))
  assert done.returncode == 0, done.stderr
  after = json.loads((copy / 'summary.json').read_text())
  assert (copy / 'report.html').exists()
  for name in ('lossless', 'num_prompts', 'tau_mean', 'recall_at_16'):
    assert before[name] == after[name]


@pytest.mark.slow
def test_export_and_passport(copy):
  done = drive(f'--workdir={copy}', *SMALL, stages('export'))
  assert done.returncode == 0, done.stderr
  assert '--speculative-num-draft-tokens 8' in done.stdout
  assert '"num_speculative_tokens": 7' in done.stdout
  config, params = drafter_files.load(copy / 'export')
  same_config, same = drafter_files.load(copy / 'drafter')
  assert config == same_config
  jax.tree.map(np.testing.assert_array_equal, params, same)
  known = json.loads((copy / 'export' / 'fingerprint.json').read_text())
  assert len(known['top_ids']) == len(known['top_logits']) == 7
  check_error(
      drive(f'--workdir={copy}', *SMALL, stages('export'),
            f'--config.export.path={copy}/drafter'),
      'is the drafter to export',
  )
  done = drive(
      f'--workdir={copy}', *SMALL, stages('passport'),
      f'--config.draft={copy}/export', '--config.passport.num_prompts=3',
      '--config.passport.prompts=stdlib_heldout',
      '--config.passport.max_new_tokens=12',
  )
  assert done.returncode == 0, done.stderr
  for line in ('method:            DFlash\n', 'layers parameters:', 'taps +0: tau'):
    assert line in done.stdout, done.stdout
  # Taps 0 and 2 of three blocks cannot move to either side.
  assert 'taps +1' not in done.stdout and 'taps fit' in done.stdout


@pytest.mark.slow
def test_text_is_streamed(finished, copy):
  """Piece by piece, and the same as without a drafter."""

  class Pieces(io.StringIO):
    def __init__(self):
      super().__init__()
      self.pieces = []

    def write(self, text):
      self.pieces.append(text)
      return super().write(text)

  out = Pieces()
  line = command(f'--workdir={copy}', *SMALL, stages('generate'))
  parse(line)
  run = workspace.Workspace(flags.FLAGS.config, str(copy))
  with contextlib.redirect_stdout(out):
    driver._STAGES['generate'](run)
  prompt = run.target.tokenizer.encode('def main(')
  (plain,) = run.autoregressive.generate([prompt], 12)
  shown = [t for t in plain.tokens if t not in run.target.tokenizer.eos_ids]
  text = run.target.tokenizer.decode(shown)
  assert text in out.getvalue()
  # Banner, one write a round, then the end.
  assert len(out.pieces) > 6


@pytest.mark.slow
def test_sampled_text_has_a_seed(copy):
  """Coupled sampling: the text of the seed, whatever the drafter."""
  warm = [
      f'--workdir={copy}', *SMALL, stages('generate'),
      '--config.sampling.temperature=0.9', '--config.sampling.rule=coupled',
  ]
  texts = []
  for more in ([], ['--config.sampling.drafts=best'], ['--config.seed=1']):
    done = drive(*warm, *more)
    assert done.returncode == 0, done.stderr
    assert 'temperature 0.9, coupled acceptance' in done.stdout
    texts.append(done.stdout[done.stdout.index('cores') :].rsplit('[', 1)[0])
  assert texts[0] == texts[1] != texts[2]
  check_error(
      drive(*warm, '--config.sampling.rule=lucky'),
      "config.sampling.rule is 'lucky'; choose from",
  )
  check_error(drive(*warm, '--config.sampling.top_p=2.0'), 'top_p is 2.0')


@pytest.mark.slow
def test_a_certificate(copy):
  def run(num_prompts, num_draws, law='temperature=0.9,top_k=40'):
    return drive(
        f'--workdir={copy}', *SMALL, stages('certify'),
        '--config.certify.prompts=("stdlib_heldout",)',
        f'--config.certify.num_prompts=({num_prompts},)',
        f'--config.certify.num_draws={num_draws}',
        '--config.certify.max_new_tokens=12',
        f'--config.certify.laws=("{law}",)',
    )

  done = run(2, 512)
  assert done.returncode == 0, done.stderr
  path = copy / 'certificate.json'
  made = json.loads(path.read_text())
  assert made['passed'] and not made['failed'] and not made['not_tested']
  assert made['exact']['worst_total_variation'] < 1e-6
  assert len(made['exact']['cases']) == 96
  assert {case['rule'] for case in made['draws']['cases']} == {
      'rejection', 'block'
  }
  assert made['coupled']['num_tokens'] == made['greedy']['num_tokens'] == 24
  check_error(run(2, 512, 'warmth=2'), "'warmth=2' is not a list of settings")
  # A part that fails, and one that is left out.
  with mock.patch.object(certify, '_EXACT', 0.0):
    done = run(0, 0)
  check_error(done, 'exact failed: the output is not the target')
  made = json.loads(path.read_text())
  assert not made['passed'] and made['failed'] == ['exact']
  assert made['not_tested'] == ['draws', 'coupled', 'greedy']


@pytest.mark.parametrize('arguments, message', [
    (['--workdir={tmp}', stages('fly')], r"stages names \['fly'\]; choose"),
    ([], '--workdir is missing'),
    (['--workdir={tmp}', stages('regenerate')], 'run the pretrain stage first'),
    (['--workdir={tmp}', stages('evaluate')], 'run the pretrain stage first'),
    (['--workdir={tmp}', '--config.target=/none.gguf', stages('regenerate')],
     '/none.gguf: no such file'),
    (['--workdir={tmp}/file/run'], 'cannot write .*file/run.*--workdir'),
    (['--workdir={tmp}', stages('regenerate'),
      '--config.target={tmp}/cut.gguf'], 'cut.gguf: cannot be read as GGUF'),
])
def test_bad_input_is_one_clear_line(tmp_path, arguments, message):
  (tmp_path / 'file').write_text('')
  (tmp_path / 'cut.gguf').write_bytes(b'GGUF\x03\x00')
  check_error(drive(*(a.format(tmp=tmp_path) for a in arguments)), message)


def test_bad_input_ends_the_process_with_status_2(tmp_path):
  done = spawn(f'--workdir={tmp_path}', stages('fly'))
  check_error(done, 'stages names')
  assert done.stdout == ''


@pytest.mark.slow
@pytest.mark.parametrize('name, content, message', [
    ('bad.jsonl', '{"turns": ["a"]}\n{"turns": \n', 'bad.jsonl, line 2: not'),
    ('long.txt', 'x = 1; ' * 2000, 'exceeds the context of 512'),
    ('empty.txt', '\n', 'holds no prompts'),
    ('chat.jsonl', '{"turns": ["a"]}', 'has no chat template'),
    ('gone.txt', None, 'cannot read the prompts of .*gone.txt'),
])
def test_bad_prompts(copy, tmp_path, name, content, message):
  if content is not None:
    (tmp_path / name).write_text(content)
  done = drive(
      f'--workdir={copy}', stages('evaluate'), *SMALL,
      f'--config.evaluate.prompts=("{tmp_path / name}",)',
  )
  check_error(done, message)


@pytest.mark.slow
def test_bad_stages_of_a_run(copy):
  """What is missing, or belongs to another run, is named."""
  here = [f'--workdir={copy}', *SMALL]
  check_error(
      drive(*here, stages('evaluate'), '--config.draft=/nowhere'),
      '/nowhere/config.json',
  )
  check_error(
      drive(*here, stages('train'), '--config.train.eval_prompts=32'),
      r'eval_prompts is 32; .* fewer than the \d+ examples',
  )
  check_error(
      drive(*here, stages('train', 'evaluate'),
            '--config.evaluate.max_new_tokens=600'),
      'prompt 0 has .* exceeds the context of 512',
  )
  check_error(
      drive(*here, stages('train'), '--config.drafter.init=zero'),
      "config.drafter.init is 'zero'",
  )
  check_error(
      drive(*here, stages('evaluate'), '--config.evaluate.num_prompts=(1, 2)'),
      'give each source a count',
  )
  drafter_files.save(copy / 'other', tiny.DRAFTER, tiny.drafter()[1])
  check_error(
      drive(*here, stages('evaluate'), f'--config.draft={copy}/other'),
      'other: made for a target with vocab_size 64, but tiny, 30 steps has 512',
  )
  shutil.rmtree(copy / 'drafter')
  check_error(drive(*here, stages('evaluate')), 'drafter/config.json')
  path = copy / 'corpus' / 'manifest.json'
  manifest = json.loads(path.read_text())
  path.write_text(json.dumps(manifest | {'target_sha256': 'f' * 64}))
  check_error(
      drive(*here, stages('train')), 'corpus: answered by tiny, 30 steps, not'
  )
  check_error(drive(*here, stages('regenerate')), 'target_sha256')
  shutil.rmtree(copy / 'corpus')
  check_error(drive(*here, stages('train')), 'no finished corpus')


@pytest.mark.slow
def test_output_that_is_not_lossless_fails_loudly(copy):
  """A decoder that is made to lie about one token."""
  real = workspace.Workspace.speculative

  def lying(self, module, params):
    session = real(self, module, params)
    generate = session.generate

    def wrong(*arguments):
      completions = generate(*arguments)
      completions[1].tokens[4] = (completions[1].tokens[4] + 7) % 256 + 2
      return completions

    session.generate = wrong
    return session

  with mock.patch.object(workspace.Workspace, 'speculative', lying):
    done = drive(f'--workdir={copy}', *SMALL, stages('evaluate'))
  assert done.returncode == 2
  assert 'error: 1 of 3 requests are not lossless' in done.stderr
  assert re.search(
      r'not lossless at emitted token 4: speculative \d+ \(margin to the argmax'
      r' \d+\.\d+\), autoregressive \d+ \(margin 0\.0\)', done.stderr
  )
  summary = json.loads((copy / 'summary.json').read_text())
  assert summary['lossless'] is False and summary['identical_to_ar'] is False


@pytest.mark.slow
def test_the_corpus_is_what_the_target_says(finished):
  workdir, _ = finished
  examples, manifest = corpus.read(workdir / 'corpus')
  assert 0 < len(examples) <= 32
  assert manifest['num_examples'] == len(examples)
  line = command(f'--workdir={workdir}', *SMALL, stages('generate'))
  parse(line)
  run = workspace.Workspace(flags.FLAGS.config, str(workdir))
  assert manifest['target_sha256'] == run.target.sha256
  example = examples[0]
  text = np.concatenate([example.prompt, example.response])
  hidden, _, _ = jax.jit(run.target.module.apply)(
      {'params': run.target.params}, jnp.asarray(text[None])
  )
  logits = run.target.module.apply(
      {'params': run.target.params}, hidden, method='head'
  )
  start = len(example.prompt) - 1
  np.testing.assert_array_equal(
      np.argmax(logits[0], axis=-1)[start:-1], example.response
  )
