"""Audit a run by its files alone, while it goes on or after it ended.

Every optimiser step stands once and every group in one step; compute never falls; evaluations are whole and agree with
the completions they come from; checkpoints hash to what they say and account for every group that was drawn.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import check, finished_checkpoints, read_state, step_folder
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.parquet import take_rows
from scalelab.store.account import Account, retention_of
from scalelab.store.chain import JOURNAL
from scalelab.store.earlier import known_manifest
from scalelab.store.lines import read_lines
from scalelab.store.manifest import (
    CHECKPOINTS,
    EVALS,
    METRICS,
    ROLLOUTS,
    check_config,
    completions_name,
    step_of_rollouts,
)
from scalelab.store.proof import Proof, prove
from scalelab.store.recovery import lost_rollouts
from scalelab.store.run_status import state_now

Line = dict[str, Any]

_KINDS: dict[str, type | tuple[type, ...]] = {
    **{"step": int, "groups": list, "task": str, "file": str, "outcomes": dict},
    **{"time": (int, float), "compute": (int, float)},
}
_LARGE = 1e300
NAMED = 5
"""Most cases of one problem that are listed one by one."""


@dataclass
class Audit:
    """Result of an audit.

    Attributes:
        run: the run's folder.
        status: the run's state; see `scalelab.store.run_status.state_of`.
        problems: what is wrong, a line each.
        notes: what is worth knowing and wrong with nothing.
        steps: optimiser steps that count.
        groups: groups that these trained on.
        evaluations: steps that were evaluated.
        checkpoints: whole checkpoints.
    """

    run: str
    status: str = "unknown"
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    groups: int = 0
    evaluations: int = 0
    checkpoints: int = 0

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def record(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {"ok": self.ok, **vars(self)}


def audit(path: Path, contents: bool = True) -> Audit:
    """Audit all files of a run.

    Args:
        path: the run's folder.
        contents: hash checkpoints and read completions, too; otherwise their sizes and names only.

    Raises:
        LabError: it is no folder of a run.
    """
    found = Audit(str(path))
    manifest = known_manifest(path)
    found.status = state_now(path, manifest)
    if (path / EVALS).is_file() and not any((path / name).exists() for name in (JOURNAL, METRICS, CHECKPOINTS)):
        found.problems.append(
            f"{JOURNAL} and {METRICS} are missing: only the run's curve is here, and nothing to hold it against"
        )
        found.evaluations = len({line.get("step") for line in _lines(path, EVALS, found)})
        return found
    proof = prove(path, manifest, contents)
    found.notes += proof.notes
    found.problems += _some(proof.problems)
    # A file that refers to another is read before that one, so that a run that goes on meanwhile looks whole.
    checkpoints = list(_checkpoints(path, contents, found))
    if proof.account is not None:
        evals, steps = (_sound(name, proof.account.views[name], found) for name in (EVALS, METRICS))
    else:
        evals, steps = (_lines(path, name, found) for name in (EVALS, METRICS))
    found.steps, found.checkpoints = len(steps), len(checkpoints)
    for problems in (
        _config(path, manifest),
        _steps(steps),
        _groups(steps),
        _compute(steps),
        _evaluations(evals, steps, _sets(manifest)),
        _completions(path, evals, _kept(evals, manifest, proof.account), proof, contents),
        *(_conservation(*checkpoint, steps) for checkpoint in checkpoints),
        _tensorboard(path, steps, found),
    ):
        found.problems += _some(problems)
    found.problems = list(dict.fromkeys(found.problems))  # a changed configuration is that of every checkpoint
    found.groups = len({name for line in steps for name in line.get("groups", ())})
    found.evaluations = len({line["step"] for line in evals})
    return found


def _some(problems: Iterable[str]) -> list[str]:
    """The first few problems of a kind, and the number of the others."""
    told = list(problems)
    return told if len(told) <= NAMED else [*told[:NAMED], f"… and {len(told) - NAMED} more like these"]


def _lines(path: Path, name: str, found: Audit) -> list[Line]:
    """Lines of a file of a run without a journal."""
    file = path / name
    if not file.exists():
        found.problems.append(f"{name} is missing")
        return []
    try:
        if read_whole(file)[-1:] not in (b"", b"\n"):
            found.notes.append(f"{name} ends with a torn line, which --resume cuts off")
        lines = read_lines(file)
    except LabError as error:
        found.problems.append(str(error))
        return []
    return _sound(name, lines, found)


def _sound(name: str, lines: list[Line], found: Audit) -> list[Line]:
    """The lines whose fields have the right types; the others are problems."""
    odd = {number: problem for number, line in enumerate(lines, 1) if (problem := _odd(line))}
    found.problems += _some(f"{name}, line {number}: {problem}" for number, problem in odd.items())
    return [line for number, line in enumerate(lines, 1) if number not in odd]


def _odd(line: Line) -> str | None:
    """Fields of a line that have the wrong type."""
    for name, kind in _KINDS.items():
        value = line.get(name)
        if (name in line and not isinstance(value, kind)) or isinstance(value, bool):
            return f"{name} is {str(value)[:40]!r}"
    if not all(isinstance(name, str) for name in line.get("groups", ())):
        return "groups are no names"
    if not all(abs(line.get(name, 0)) < _LARGE for name in ("time", "compute")):
        return "time or compute is no finite number"
    return None if "step" in line else "it has no step"


def _config(path: Path, manifest: Line) -> Iterator[str]:
    try:
        check_config(path, manifest)
    except LabError as error:
        yield str(error)


def _steps(steps: list[Line]) -> Iterator[str]:
    """Check that steps are 1, 2, 3, …"""
    for place, line in enumerate(steps, 1):
        if line.get("step") != place:
            yield f"metrics.jsonl, line {place}, is of step {line.get('step')}"


def _groups(steps: list[Line]) -> Iterator[str]:
    """Check that no group is trained on twice."""
    trained: dict[str, Any] = {}
    for line in steps:
        for name in line.get("groups", ()):
            if name in trained:
                yield f"{name} was trained on in step {trained[name]} and again in step {line.get('step')}"
            trained[name] = line.get("step")


def _compute(steps: list[Line]) -> Iterator[str]:
    """Check that compute never falls from a step to the next, whatever the clock says."""
    before = 0.0
    for line in steps:
        spent = line.get("compute", before)
        if spent < before:
            yield f"metrics.jsonl: compute falls from {before:.6g} to {spent:.6g} at step {line.get('step')}"
        before = max(before, spent)


def _evaluations(evals: list[Line], steps: list[Line], sets: list[list[str]]) -> Iterator[str]:
    """Check that every evaluation has one line per task of its sets, of a step that was taken."""
    by_step: defaultdict[int, Counter[Any]] = defaultdict(Counter)
    for line in evals:
        by_step[line["step"]][line.get("task")] += 1
    last = len(steps)
    for step, lines in by_step.items():
        for task, count in lines.items():
            if count > 1:
                yield f"evaluation {step} has {count} lines of {task}"
        missing = [task for of_set in sets if lines.keys() & of_set for task in of_set if task not in lines]
        if missing:
            yield f"evaluation {step} lacks {', '.join(missing)}"
        if step > last:
            yield f"evaluation {step} is of a step that metrics.jsonl does not have"


def _sets(manifest: Line) -> list[list[str]]:
    """Names of the tasks of each evaluation set; earlier versions had the held-out split alone."""
    sets = manifest.get("evaluation_sets", {"held_out": manifest.get("held_out")})
    return (
        [[*map(str, tasks)] for tasks in sets.values() if isinstance(tasks, list | dict)]
        if isinstance(sets, dict)
        else []
    )


def _kept(evals: list[Line], manifest: Line, account: Account | None) -> set[int]:
    """The evaluated steps whose completions the run keeps."""
    steps = {line["step"] for line in evals}
    if account is None:
        return retention_of(manifest).kept(steps)
    return {step for step in steps if f"{ROLLOUTS}/{completions_name(step)}.parquet" in account.files}


def _completions(path: Path, evals: list[Line], kept: set[int], proof: Proof, contents: bool) -> Iterator[str]:
    """Check that every evaluation's completions are there, unless the run keeps fewer, and agree with its lines.

    A run may be passed on without its completions: then there is no folder for them.
    """
    told = proof.account.files if proof.account else {}  # those that the journal names are missed by its proof
    if not (path / ROLLOUTS).is_dir():
        return
    by_step: defaultdict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in evals:
        name, step = str(line.get("rollouts")), line["step"]
        known = step_of_rollouts(f"{ROLLOUTS}/{name}.parquet") == step  # a stranger's line may name any path
        by_step[step, name if known else completions_name(step)].append(line)
    for step, name in sorted(by_step):
        file = path / ROLLOUTS / f"{name}.parquet"
        if step not in kept:
            continue
        if not file.exists():
            if f"{ROLLOUTS}/{file.name}" not in told:
                yield f"evaluation {step} has no completions: {file.name} is missing"
            continue
        columns = ["task", "prompt_id", "reward", "outcome"] if contents else []
        try:
            found = take_rows(file, None, columns)
        except LabError as error:
            yield f"rollouts/{error}"
            continue
        if lacking := [one for one in columns if one not in found]:
            yield f"rollouts/{file.name} has no column {lacking[0]}"
            continue
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*found.values(), strict=True)]
        for line in by_step[step, name] if contents else ():
            problem = _disagreement(line, [row for row in rows if row["task"] == line.get("task")])
            if problem:
                yield f"evaluation {step}, {line.get('task')}: {problem}"


def _disagreement(line: Line, rows: list[Line]) -> str | None:
    """Differences between an evaluation's line and its completions."""
    outcomes = Counter(row["outcome"] for row in rows)
    if line.get("outcomes") != dict(outcomes):
        return f"the line counts {line.get('outcomes')}, the completions are {dict(outcomes)}"
    failed = {row["prompt_id"] for row in rows if row["outcome"] == "error"}
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["prompt_id"] not in failed:
            by_prompt[row["prompt_id"]].append(row["reward"])
    if not all(isinstance(reward, int | float) for rewards in by_prompt.values() for reward in rewards):
        return "the completions have rewards that are no numbers"
    said = line.get("pass_rate")
    if not by_prompt:  # every verdict was an error
        return None if said is None else f"the line says {said}, and no completion could be graded"
    mean = sum(sum(rewards) / len(rewards) for rewards in by_prompt.values()) / len(by_prompt)
    if not isinstance(said, int | float) or not abs(said - mean) <= 1e-6:
        return f"the line says {said}, the completions give {mean:.6g}"
    return None


def _checkpoints(path: Path, contents: bool, found: Audit) -> Iterator[tuple[str, Line]]:
    """Read the name and the state of every whole checkpoint, and record the problems of the others.

    A run that goes on deletes checkpoints meanwhile, their manifests first: those are no problems.
    """
    root = path / CHECKPOINTS
    for checkpoint in finished_checkpoints(root):
        try:
            check(checkpoint, contents=contents)
            state = read_state(checkpoint)
            check_config(path, state)
        except (MoeError, LabError, OSError) as error:
            if checkpoint in finished_checkpoints(root):
                found.problems.append(str(error))
            continue
        lost = lost_rollouts(root, state)
        if lost and checkpoint in finished_checkpoints(root):
            found.problems.append(lost)
        yield checkpoint.name, state


def _conservation(name: str, state: Line, steps: list[Line]) -> Iterator[str]:
    """Check that every group drawn before a checkpoint was trained on, dropped for a reason, or waits in it.

    Args:
        name: of the checkpoint's folder.
        state: what the run had put into it.
        steps: lines of `metrics.jsonl`.
    """
    try:
        version, drawn = int(state["schedule"]["trainer_version"]), int(state["drawn"])
        waiting = list(state["groups"])
        dropped = sum((state.get("dropped") or state.get("refilled") or {}).values())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield f"{name}: its state lacks {error}"
        return
    if name != step_folder("", version).name:
        yield f"{name} holds the books of step {version}"
    if version > len(steps):
        yield f"{name} is of a step that metrics.jsonl does not have"
        return
    settled = Counter(group for line in steps[:version] for group in line.get("groups", ())) + Counter(waiting)
    unknown = settled.keys() - {f"group{number}" for number in range(drawn)}
    if unknown:
        yield f"{name}: {len(unknown)} groups were never drawn, such as {min(unknown)}"
    doubled = [group for group in waiting if settled[group] > 1]
    if doubled:
        yield f"{name}: {len(doubled)} groups wait that were trained on already, such as {doubled[0]}"
    lost = drawn - len(settled) - dropped
    if lost < 0:
        yield f"{name}: {drawn} groups were drawn, and {drawn - lost} were trained on, wait or were dropped"
    if lost > 0:
        yield f"{name}: of {drawn} groups drawn, {lost} were neither trained on, nor wait, nor were dropped"


def _tensorboard(path: Path, steps: list[Line], found: Audit) -> Iterator[str]:
    """Check that TensorBoard shows no step twice; missing steps are allowed."""
    folder = path / "tensorboard"
    shown = _shown_steps(folder) if folder.is_dir() else None
    if shown is None:
        found.notes.append("there are no TensorBoard events to look at")
        return
    for step, count in Counter(shown).items():
        if count > 1:
            yield f"TensorBoard shows step {step} {count} times"
    if len(set(shown)) < len(steps):
        found.notes.append(f"TensorBoard shows {len(set(shown))} of {len(steps)} steps")


def _shown_steps(folder: Path) -> list[int] | None:
    """Steps that TensorBoard shows, by a number that every step has; None if it is not installed."""
    load = _accumulator()
    if load is None:
        return None
    events = load(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tag = "train/compute"
    return [event.step for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


def _accumulator() -> Callable[..., Any] | None:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError:
        return None
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of undone steps, which are expected
    return EventAccumulator
