"""The checkpoint that a run goes on from: the newest that is whole.

Decided from the files alone, so that it is known before an engine or a trainer starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import (
    check,
    digest,
    finished_checkpoints,
    read_state,
    restore_replaced,
    set_aside,
    step_folder,
)
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.store.account import Account
from scalelab.store.earlier import read_account
from scalelab.store.lines import read_lines
from scalelab.store.manifest import CHECKPOINTS, METRICS, check_config
from scalelab.store.publication import LINE

DUE = "due"
"""Key in a virtual run's state: false if the checkpoint was only taken because the run was asked to stop."""
_ROLLOUTS = re.compile(r"rollouts_([0-9a-f]{64})\.npz")


@dataclass(frozen=True)
class Return:
    """The checkpoint to resume from, and the problems of newer ones.

    Attributes:
        path: the checkpoint; None if the run has none, and begins anew.
        state: what the run had put into it.
        problems: what was wrong with newer ones, newest first.
        lost: what is wrong with the rollouts that this one names, whose groups are generated again.
        not_due: newer ones that a virtual run took because it was asked to stop. One that is not asked has none, and
            both are to be the same run.
    """

    path: Path | None
    state: dict[str, Any]
    problems: tuple[str, ...] = ()
    lost: str | None = None
    not_due: tuple[Path, ...] = ()


def choose(run_folder: Path, hf_config: dict[str, Any] | None = None) -> Return:
    """Find the checkpoint to go on from, and set the damaged ones aside that are newer.

    Args:
        run_folder: the run's folder.
        hf_config: the model that it must be of; None takes any.

    Raises:
        LabError: the run has checkpoints, and none can be used. They stay as they are.
    """
    root, account = run_folder / CHECKPOINTS, read_account(run_folder)
    restore_replaced(root)
    passed: dict[Path, str] = {}
    not_due: list[Path] = []
    for path in reversed(finished_checkpoints(root)):
        try:
            check(path, hf_config)
            state = read_state(path)
            check_config(run_folder, state)
            belongs(path, state, run_folder, account)
        except (MoeError, LabError, OSError) as error:
            passed[path] = str(error)
            continue
        virtual = state.get("virtual")
        if isinstance(virtual, dict) and virtual.get(DUE) is False:
            not_due.append(path)
            continue
        for damaged in passed:
            set_aside(damaged)
        return Return(path, state, tuple(passed.values()), lost_rollouts(root, state), tuple(not_due))
    if passed:
        raise LabError("no checkpoint can be used: " + "; ".join(passed.values()))
    return Return(None, {}, not_due=tuple(not_due))


def step_of(state: dict[str, Any]) -> int:
    """The optimiser steps behind a checkpoint, by what the run had put into it.

    Raises:
        LabError: it does not say.
    """
    try:
        return int(state["schedule"]["trainer_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise LabError(f"its state does not say of which step it is: {error} is missing") from None


def belongs(path: Path, state: dict[str, Any], run_folder: Path, account: Account | None) -> None:
    """Check that a checkpoint is of the step that its folder says, and of the steps that the run's lines hold.

    Raises:
        LabError: it is not.
    """
    step = step_of(state)
    if path.name != step_folder(path.parent, step).name:
        raise LabError(f"{path} is the checkpoint of step {step} under another name: give it its own name back")
    lines = run_folder / METRICS
    counted = read_lines(lines) if account is None and lines.exists() else ()
    there = len(counted) if account is None else account.steps
    if step > there:
        raise LabError(
            f"{path} is of step {step}, but the run's lines end with step {there}: put the lines that are missing back"
        )
    if account is None:
        return
    if account.checkpoints.get(step, digest(path / CHECKPOINT)[1]) != digest(path / CHECKPOINT)[1]:
        raise LabError(f"{path} is not the checkpoint that this run took at step {step}")
    line = account.lines.get(step)
    if state.get(LINE, line) != line:
        raise LabError(f"{path} is of a step {step} that this run has undone, and taken again since")


def lost_rollouts(root: Path, state: dict[str, Any]) -> str | None:
    """The problem of the rollouts file that a checkpoint names; None if it is whole, or none is named.

    Args:
        root: the folder of all checkpoints.
        state: what the run had put into the checkpoint.
    """
    name = state.get("rollouts")
    if name is None:
        return None
    match = _ROLLOUTS.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return f"{name!r} is no name of a file of rollouts: its groups have to be generated again"
    try:
        found = digest(root / match[0])[1]
    except OSError:
        return f"{root / match[0]} is missing: its groups have to be generated again"
    return None if found == match[1] else f"{root / match[0]} is damaged: its groups have to be generated again"
