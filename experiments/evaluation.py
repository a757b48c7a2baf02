"""The evaluate stage: decode both ways, judge, analyse, report."""

from collections.abc import Sequence
import dataclasses

import numpy as np
import tqdm

from dflash_jax import errors
from dflash_jax.decode import session as sessions
from dflash_jax.evaluate import analysis
from dflash_jax.evaluate import lossless
from dflash_jax.evaluate import metrics
from dflash_jax.evaluate import report
from dflash_jax.evaluate import summary as summaries
from dflash_jax.train import loop
from experiments import workspace


def prompts_of(run: workspace.Workspace) -> tuple[list[str], list[list[int]]]:
  """Names and tokens of the evaluation prompts.

  Raises:
    errors.UserError: one cannot be read, or does not fit the context.
  """
  config = run.config.evaluate
  prompts = run.prompts(config.prompts, config.num_prompts)
  names = [prompt.id for prompt in prompts]
  encoded = [run.encode(prompt) for prompt in prompts]
  run.autoregressive.check(encoded, config.max_new_tokens)
  return names, encoded


def evaluate(run: workspace.Workspace) -> None:
  """Writes `summary.json`, plots and `report.html` into the workdir.

  Raises:
    errors.UserError: the output is not lossless; the report is written first.
  """
  names, prompts = prompts_of(run)
  ours, theirs = _decode(run, names, prompts)
  teacher = analysis.Teacher(run.target.module, run.target.params)
  verdict = _judge(teacher, prompts, ours, theirs)
  ranks, hits, valid, request, position = _rank(run, teacher, prompts, ours)
  summary = summaries.summarize(
      requests_spec=ours,
      requests_ar=theirs,
      ranks=ranks,
      hits=hits,
      valid=valid,
      anchor_request=request,
      anchor_position=position,
      block_size=run.drafter.module.config.block_size,
      lossless=dataclasses.asdict(verdict),
      versions=workspace.versions(),
      device=workspace.device(),
  )
  report.write_report(
      run.folder,
      summary,
      ours,
      loop.MetricsLog(run.folder / 'metrics.jsonl').rows(),
      run.config.to_dict(),
      run.target.tokenizer.to_bytes,
  )
  for line in summaries.console_lines(summary):
    print(line)
  if not summary['simulated_equals_decoded']:
    print(
        'note: the replay of the decode from ranks differs in a round, as a'
        ' near-tie can make it; if there are no near-ties, report a bug'
    )
  if not verdict.lossless:
    raise errors.UserError(
        f'{len(verdict.failures)} of {len(prompts)} requests are not lossless:'
        ' this is a bug in the decoder or in its numerics, please report it.\n'
        + '\n'.join(verdict.failures)
    )


def _decode(run, names, prompts):
  """Both decodes, batch by batch in turn, so that both meet the same machine."""
  config = run.config.evaluate
  pairs = (
      (run.speculative(run.drafter.module, run.drafter.params), []),
      (run.autoregressive, []),
  )
  size = config.batch_size
  for start in tqdm.tqdm(
      range(0, len(prompts), size), desc='decode', unit='batch'
  ):
    for session, requests in pairs:
      completions = session.generate(
          prompts[start : start + size], config.max_new_tokens
      )
      requests += [
          _request(run, names[i], prompts[i], completion)
          for i, completion in enumerate(completions, start)
      ]
  return pairs[0][1], pairs[1][1]


def _request(
    run: workspace.Workspace,
    name: str,
    prompt: Sequence[int],
    completion: sessions.Completion,
) -> metrics.Request:
  return metrics.Request(
      id=name,
      prompt_tokens=len(prompt),
      text=run.target.tokenizer.decode(completion.tokens),
      tokens=completion.tokens,
      produced=completion.produced,
      accepted=completion.accepted,
      seconds=completion.seconds,
  )


def _judge(teacher, prompts, ours, theirs):
  margins, baseline_margins = [], []
  for prompt, spec, plain in tqdm.tqdm(
      list(zip(prompts, ours, theirs)), desc='check', unit='prompt'
  ):
    margins.append(teacher.margins(prompt, spec.tokens))
    same = spec.tokens == plain.tokens
    baseline_margins.append(
        margins[-1] if same else teacher.margins(prompt, plain.tokens)
    )
  return lossless.judge(
      [request.id for request in ours],
      [request.tokens for request in ours],
      [request.tokens for request in theirs],
      margins,
      baseline_margins,
  )


def _rank(run, teacher, prompts, requests):
  ranker = analysis.Ranker(
      teacher, run.drafter.module, run.drafter.params, run.walk
  )
  ranks, hits, valid, request, position = [], [], [], [], []
  for index, (prompt, decoded) in enumerate(tqdm.tqdm(
      list(zip(prompts, requests)), desc='rank', unit='prompt'
  )):
    found, right, exists = ranker.ranks(prompt, decoded.tokens)
    ranks.append(found)
    hits.append(right)
    valid.append(exists)
    request.append(np.full(len(found), index))
    position.append(np.arange(len(found)))
  return tuple(map(np.concatenate, (ranks, hits, valid, request, position)))
