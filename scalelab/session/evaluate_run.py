"""Evaluate checkpoints of a run on sets that it was not evaluated on; the points join its curves."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import check, checkpoints_by_step, read_state
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.experiment import Resolved
from scalelab.rollout.evaluation import Graded
from scalelab.run.evaluation_sets import ReadySet
from scalelab.run.evaluations import EvaluationPoint, PreparedSet, by_name, prepared_sets
from scalelab.run.journal import evaluation_lines
from scalelab.run.local_evaluation import LocalGraders
from scalelab.run.work import RolloutWork
from scalelab.session.evaluate_model import STALL_SECONDS, engine_config, sample
from scalelab.session.problems import check_overlap
from scalelab.session.session import hold_folder
from scalelab.start.model_folder import find_model
from scalelab.store.earlier import claimed_manifest, read_account
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import CHECKPOINTS, EVALS, check_config
from scalelab.watch.progress import Progress

Record = dict[str, Any]

_SPENT = ("compute", "compute_undisturbed", "compute_by_role", "completions", "tokens", "flops")
"""Keys of the compute behind a policy: points of one step lie at one place, whichever set they are of."""


@dataclass(frozen=True)
class _Due:
    """A checkpoint, and the sets that its weights were not evaluated on."""

    path: Path
    step: int
    sets: tuple[ReadySet, ...]


def evaluate_run(path: Path, resolved: Resolved, steps: Sequence[int] | None, progress: Progress) -> list[Record]:
    """Evaluate the checkpoints of a run on every set of a configuration that they were not evaluated on.

    Args:
        path: the run's folder.
        resolved: the run's configuration, with the sets.
        steps: of the checkpoints; None takes all.
        progress: takes lines for people.

    Returns:
        The lines that `evals.jsonl` got.

    Raises:
        LabError: nothing is left to evaluate, a checkpoint is damaged, the run goes on, …; before an engine starts.
    """
    account = read_account(path)
    check_config(path, claimed_manifest(path))
    if account is None:
        raise LabError(f"{path} has no journal: go on with it once by --resume, which writes one")
    run = resolved.run
    done = {(record["step"], record["task"]) for record in account.views[EVALS]}
    due = _due(path, run.sets, steps, done)
    own = {record["step"]: {name: record[name] for name in _SPENT if name in record} for record in account.views[EVALS]}
    check_overlap(run, progress.say)
    model = find_model(due[0].path, run)
    tokenizer = model.tokenizer()
    prepared = prepared_sets(run, RolloutWork(run.recipe, tokenizer, run.seed, run.virtual is not None))
    wanted = [prepared[one.name] for one in run.sets if any(one in each.sets for each in due)]
    config = engine_config(model, [prompt for one in wanted for prompt in one.prompts], _longest(wanted))
    added: list[Record] = []
    with (
        hold_folder(path, progress) as lease,
        closing(RunFolder(path, lease)) as folder,
        closing(LocalGraders(run.graded_tasks, os.cpu_count() or 1, STALL_SECONDS)) as graders,
    ):
        known = folder.manifest.get("evaluation_sets", {"held_out": list(folder.manifest.get("held_out", {}))})
        more = {one.name: [task.name for task in one.tasks] for one in run.sets}
        asked = [*folder.manifest.get("evaluated_afterwards", []), {"at": time.time(), "config": resolved.config_gin()}]
        folder.describe(evaluation_sets={**known, **more}, evaluated_afterwards=asked)
        for each in due:
            progress.say(f"step {each.step}: {', '.join(one.name for one in each.sets)}")
            with tempfile.TemporaryDirectory(prefix="scalelab-eval-") as scratch:
                at = find_model(each.path, run)
                hf, point = at.hf_folder(Path(scratch)), _point(each.path, each.step)
                for one in each.sets:
                    named = by_name([prepared[one.name]], each.step)
                    rollouts = sample(hf, config, tokenizer, named, graders, at, run.seed)
                    with closing(_Dropped(folder.evaluation_file(each.step, one.name))) as file:
                        file.completions.add(rollouts)
                        file.completions.finish().result()
                    lines = evaluation_lines(run, point, [Graded.of(rollout) for rollout in rollouts], one.name)
                    beside = own.get(each.step, {})
                    lines = [line | beside | {"afterwards": True, "time": time.time()} for line in lines]
                    folder.add_evaluation(lines, of_set=one.name)
                    progress.evaluated(lines)
                    added += lines
    return added


@dataclass
class _Dropped:
    """A file of completions that is dropped when it is closed, unless it is whole."""

    completions: Any

    def close(self) -> None:
        """Drop what is not whole."""
        self.completions.drop()


def _due(path: Path, sets: Sequence[ReadySet], steps: Sequence[int] | None, done: set[tuple[int, str]]) -> list[_Due]:
    """The checkpoints with the sets that each was not evaluated on."""
    found = checkpoints_by_step(path / CHECKPOINTS)
    missing = sorted(set(steps or ()) - found.keys())
    if missing or not found:
        there = ", ".join(map(str, sorted(found))) or "none"
        raise LabError(f"{path} has no checkpoint{f' of step {missing[0]}' if missing else ''}; there are: {there}")
    due = []
    for step in sorted(steps or found):
        left = tuple(one for one in sets if any((step, task.name) not in done for task in one.tasks))
        if left:
            try:
                check(found[step])
            except MoeError as error:
                raise LabError(f"{error}; leave it out with --steps") from None
            due.append(_Due(found[step], step, left))
    if not due:
        names = ", ".join(one.name for one in sets)
        raise LabError(
            f"every checkpoint of {path} was evaluated on {names}: add a set, such as --set "
            "'Evaluation.sets=(@HeldOut(), @Benchmark())' --set Benchmark.data='\"aime_24\"'"
        )
    return due


def _longest(sets: Sequence[PreparedSet]) -> Any:
    return max((one.work for one in sets), key=lambda work: work.max_tokens)


def _point(checkpoint: Path, step: int) -> EvaluationPoint:
    """Compute and counts behind a checkpoint, by its books."""
    state = read_state(checkpoint)
    completions, tokens, generated = state["counts"]
    return EvaluationPoint(step, dict(state["ledger"]), completions, tokens, generated, 0.0)
