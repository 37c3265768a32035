"""Go on from a checkpoint of another run: extend it by a new budget, or branch it with other settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe.checkpoint.folder import check
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.plan.disk import check_disk
from scalelab.plan.planner import step_hours
from scalelab.run.checkpoint_store import taken_by_rule
from scalelab.run.config import Run
from scalelab.session.facts import facts, process_facts
from scalelab.session.session import hold_folder, run_and_record
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import CONFIG, CONFIG_SHA256, START, config_sha256
from scalelab.store.places import clear, free_folder, made_nothing
from scalelab.store.publication import LINE
from scalelab.store.recovery import DUE
from scalelab.store.trunk import FROM, Trunk, adapted, plant, read_trunk
from scalelab.virtual.cluster import check_simulated
from scalelab.watch.progress import Progress

if TYPE_CHECKING:
    from scalelab.experiment import Resolved

BUDGET_ROLES = ("generator", "trainer", "faults")
"""Roles whose hours a budget counts."""


def split(spec: str) -> tuple[Path, int | None]:
    """The run and the step of `RUN` or `RUN@STEP`.

    Raises:
        LabError: there is no such run, or what follows the last @ is no step.
    """
    if Path(spec).is_dir():
        return Path(spec), None
    run, at, step = spec.rpartition("@")
    if not at or not Path(run).is_dir():
        raise LabError(f"--from {spec}: there is no run's folder {run or spec}; write RUN, or RUN@STEP")
    if not (step.isascii() and step.isdigit()):
        raise LabError(f"--from {spec}: {step!r} is no step of a run; write it as {run}@100")
    return Path(run), int(step)


def branch(
    resolved: Resolved,
    parent: Resolved,
    source: tuple[Path, int | None],
    start: Run,
    out: Path | None,
    progress: Progress,
    take: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Run a branch to its end and return its folder; the parent stays as it is.

    Args:
        resolved: what the branch runs.
        parent: what the parent ran.
        source: the parent's folder, and the step to go on from; None takes the newest checkpoint that will do.
        start: the run that the first of all these began with, which says what the base model is.
        out: the branch's folder; None takes the next that is free.
        progress: takes lines for people.
        take: called with the folder once it is this process's.

    Raises:
        LabError: the parent cannot be gone on from, or not with these settings; one line, before anything starts.
    """
    run, path = resolved.run, out or free_folder(resolved.name)
    trunk = read_trunk(*source, lambda state: goes_on_alike(state, parent.run))
    _check_settings(run, parent.run, trunk)
    check_simulated(run, trunk.parent, trunk.manifest)
    check_disk(path, run, step_hours(run))
    if path.exists() and not made_nothing(path):
        raise LabError(f"{path} exists and is not empty: give another --out, or move it away")
    with hold_folder(path, progress) as lease:
        take(path)
        clear(path)
        folder, began = RunFolder(path, lease), time.time()
        names = [task.name for task in run.tasks], [one.name for one in run.sets]
        state = adapted(trunk.state, *names, restart=_restarts(run, parent.run))
        config = resolved.config_gin()
        folder.write_config(config, _start_text(trunk.parent))
        plant(trunk, folder, {**state, CONFIG_SHA256: config_sha256(path), LINE: None})
        here = {"since": began, **process_facts(run)}
        told = {**facts(resolved), FROM: trunk.facts, **_base_of(trunk)}
        folder.begin(config, **told, processes=[here], started=began, status="running")
        progress.say(f"{resolved.name}: goes on from step {trunk.step} of {trunk.parent}, writing to {path}")
        for line in _remarks(run, parent.run, trunk, state):
            progress.say(line)
        run_and_record(resolved, folder, progress, start)
    return path


def _base_of(trunk: Trunk) -> dict[str, Any]:
    """The digest of the base model that the first of all these began with, where the parent's manifest has it."""
    digest = trunk.manifest.get("base_model")
    return {} if digest is None else {"base_model": digest}


def _start_text(parent: Path) -> str:
    """Configuration of the run that all began with: that of the parent, unless it is a branch itself."""
    first = parent / START
    return read_whole(first if first.exists() else parent / CONFIG).decode()


def goes_on_alike(state: Mapping[str, Any], parent: Run) -> bool:
    """True if a longer run on a simulated clock would have passed through this checkpoint, too.

    Near its end a run starts no group that it would not train on, and its last checkpoint comes when it ends. So the
    checkpoint must be due by its step, within the budget, and leave a step's groups to be drawn.

    Args:
        state: of the checkpoint.
        parent: the run that took it.
    """
    virtual, budget = state.get("virtual"), parent.budget
    if not isinstance(virtual, dict):
        return parent.virtual is None
    if virtual.get(DUE) is False:
        return False
    drawn = state["drawn"] - sum(state["dropped"].values())
    spent = sum(state["ledger"].get(role, 0.0) for role in BUDGET_ROLES)
    return (
        taken_by_rule(state, parent)
        and drawn <= parent.recipe.prompts_per_step * (budget.steps - 1)
        and (budget.hours is None or spent < budget.hours)
    )


_SAME_GROUPS = ("prompts_per_step", "prompts_at_start", "prompts_grow_until", "generations_per_prompt", "curriculum")
"""Settings of a recipe without which a parent's groups are of no use."""


def _restarts(run: Run, parent: Run) -> bool:
    """True if the branch cannot use the groups that its parent had under way."""
    mine, theirs = run.recipe, parent.recipe
    return (
        any(getattr(mine, name) != getattr(theirs, name) for name in _SAME_GROUPS)
        or run.schedule != parent.schedule
        or [task.name for task in run.tasks] != [task.name for task in parent.tasks]
    )


def _check_settings(run: Run, parent: Run, trunk: Trunk) -> None:
    """Refuse settings that cannot change at a fork, or leave nothing to do.

    Raises:
        LabError: naming the one that differs.
    """
    at = f"{trunk.parent}@{trunk.step}"
    if run.sft != parent.sft or run.trainer_setup.dtype != parent.trainer_setup.dtype:
        told = [name for name in vars(parent.sft) if getattr(run.sft, name) != getattr(parent.sft, name)]
        what = f"SFT.{told[0]}" if told else "TrainerConfig.dtype"
        raise LabError(
            f"{what} differs from that of {trunk.parent}: a branch has the weights and the tokenizer of its parent; "
            "leave it as it is there, or start a run of its own"
        )
    try:
        check(trunk.checkpoint, run.model.to_hf(), contents=False)
    except MoeError as error:
        raise LabError(f"{at} cannot go on with another model: {error}") from None
    if (run.virtual is None) != (parent.virtual is None):
        here, there = (
            ("a simulated clock", "the wall clock")
            if run.virtual is not None
            else ("the wall clock", "a simulated clock")
        )
        raise LabError(
            f"{trunk.parent} counts compute on {there}, and the branch on {here}: the hours are not the same"
        )
    if run.compute_unit != parent.compute_unit:
        raise LabError(f"{trunk.parent} counts {parent.compute_unit}, and the branch {run.compute_unit}: keep the unit")
    spent = sum(trunk.state["ledger"].get(role, 0.0) for role in BUDGET_ROLES)
    if trunk.step >= run.budget.steps or (run.budget.hours is not None and spent >= run.budget.hours):
        raise LabError(
            f"{at} has spent {trunk.step} steps and {spent:.4g} {parent.compute_unit}, all of the budget: give "
            f"more, such as --set Budget.steps={2 * trunk.step}"
        )


def _remarks(run: Run, parent: Run, trunk: Trunk, state: Mapping[str, Any]) -> list[str]:
    """Remarks for a reader of the branch."""
    dropped = state["dropped"].get("branch", 0) - trunk.state["dropped"].get("branch", 0)
    found = [f"{dropped} groups that were under way are dropped, for the branch has another batch, schedule or mix"]
    told = found if dropped else []
    if run.virtual is not None and not goes_on_alike(trunk.state, parent):
        told.append(
            f"step {trunk.step} was near the end of {trunk.parent}, which had stopped to draw prompts: one longer "
            "run would not be the same to the last bit"
        )
    return told
