"""The trunk of a branch: the checkpoint and the lines of a run, up to the step at which another run goes on from it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import (
    STATE,
    check,
    checkpoints_by_step,
    digest,
    publish,
    read_manifest,
    read_state,
    step_folder,
    write_manifest,
)
from moe.durable import write_whole
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.store.account import Account, Record
from scalelab.store.chain import JOURNAL, read_chain
from scalelab.store.earlier import claimed_manifest, read_account
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import CHECKPOINTS, check_config, step_of_rollouts
from scalelab.store.recovery import DUE, belongs, lost_rollouts, step_of

FROM = "from"
"""Key of the manifest of a branch: its parent, the step of the fork, and the digest of the checkpoint there."""


@dataclass(frozen=True)
class Trunk:
    """Records and files of a parent that its branch takes over.

    Attributes:
        parent: the parent's folder.
        step: of the fork.
        checkpoint: the parent's checkpoint of that step.
        sha256: of that checkpoint's manifest, which lists the hashes of its files.
        head: hash of the last line of the parent's journal.
        state: the books in the checkpoint.
        manifest: of the parent.
        lines: records up to the step, by file of lines.
        files: completions up to the step with their digests.
    """

    parent: Path
    step: int
    checkpoint: Path
    sha256: str
    head: str
    state: Record
    manifest: Record
    lines: dict[str, list[Record]]
    files: dict[str, list[Any]]

    @property
    def facts(self) -> Record:
        """The fork as the branch's journal and manifest name it."""
        names = {"run": str(self.parent.resolve()), "step": self.step}
        return names | {"checkpoint": self.sha256, "journal": self.head}


def read_trunk(parent: Path, step: int | None, alike: Callable[[Record], bool]) -> Trunk:
    """Read what a branch needs of a run, which stays as it is.

    Args:
        parent: the run's folder.
        step: of the checkpoint to go on from; None takes the newest that will do, or else the newest.
        alike: whether a run that goes on from a checkpoint's state is what one longer run would have been.

    Raises:
        LabError: it is no run, its journal is damaged, or it has no such checkpoint that is whole.
    """
    account = read_account(parent)
    manifest = claimed_manifest(parent)
    check_config(parent, manifest)
    if account is None:
        raise LabError(f"{parent} has no {JOURNAL}: go on with it once by --resume, which writes one, then branch it")
    path, state = _chosen(parent, account, step, alike)
    at = step_of(state)
    lines = {name: [one for one in records if one.get("step", 0) <= at] for name, records in account.views.items()}
    files = {name: list(one) for name, one in account.files.items() if (step_of_rollouts(name) or at + 1) <= at}
    head = read_chain(read_whole(parent / JOURNAL)).head
    sha256 = digest(path / CHECKPOINT)[1]
    return Trunk(parent, at, path, sha256, head, state, manifest, lines, files)


def _chosen(parent: Path, account: Account, step: int | None, alike: Callable[[Record], bool]) -> tuple[Path, Record]:
    """The checkpoint to go on from, checked, and its state."""
    found = checkpoints_by_step(parent / CHECKPOINTS)
    if not found:
        raise LabError(f"{parent} has no checkpoint to go on from")
    if step is not None and step not in found:
        raise LabError(f"{parent} has no checkpoint of step {step}; there are: {', '.join(map(str, sorted(found)))}")
    wanted = [step] if step is not None else sorted(found, reverse=True)
    broken, usable = [], []
    for one in wanted:
        try:
            check(found[one])
            state = read_state(found[one])
            check_config(parent, state)
            belongs(found[one], state, parent, account)
        except (MoeError, LabError, OSError) as error:
            broken.append(str(error))
            continue
        usable.append((found[one], state))
        if step is not None or alike(state):
            return usable[-1]
    if not usable:
        raise LabError(f"no checkpoint of {parent} can be used: {'; '.join(broken)}")
    return usable[0]


def plant(trunk: Trunk, folder: RunFolder, state: Mapping[str, Any]) -> None:
    """Begin a branch's folder: the parent's checkpoint and completions, then the first line of the journal.

    Files that never change are linked where the disk allows it, and else copied.

    Args:
        trunk: what it takes over.
        folder: of the branch, empty.
        state: the books that it goes on with.
    """
    target = step_folder(folder.checkpoints, trunk.step)
    fresh = target.with_name(f".{target.name}.writing")
    fresh.mkdir(parents=True)
    manifest = read_manifest(trunk.checkpoint)
    for name in manifest.files:
        if name != STATE:
            _take(trunk.checkpoint / name, fresh / name)
    write_whole(fresh / STATE, json.dumps(dict(state)))
    files = {name: digest(fresh / name) if name == STATE else one for name, one in manifest.files.items()}
    write_manifest(fresh, replace(manifest, files=files))
    publish(fresh, target)
    root = trunk.parent / CHECKPOINTS
    waiting = state.get("rollouts")
    if waiting is not None and lost_rollouts(root, dict(state)) is None:
        _take(root / waiting, folder.checkpoints / waiting)
    there = [name for name in trunk.files if (trunk.parent / name).is_file()]
    for name in there:
        _take(trunk.parent / name, folder.path / name)
    folder.fork(
        parent=trunk.facts,
        lines=trunk.lines,
        files={name: trunk.files[name] for name in there},
        checkpoints={trunk.step: digest(target / CHECKPOINT)[1]},
    )


def _take(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def adapted(state: Mapping[str, Any], tasks: Sequence[str], sets: Sequence[str], restart: bool) -> dict[str, Any]:
    """The books of a checkpoint for a branch with other tasks, sets or batches.

    Args:
        state: as the parent saved it.
        tasks: names of the branch's tasks; new ones begin with their first prompt.
        sets: names of its evaluation sets.
        restart: drop the groups that no step has trained on, which another batch, schedule or mix cannot use.
    """
    sampler = state["sampler"]
    found = {**state, "sampler": _sampler(sampler, tasks)}
    for name in ("evaluated", "due"):
        if name in state:
            found[name] = {one: version for one, version in state[name].items() if one in sets}
    if isinstance(state.get("virtual"), dict):
        found["virtual"] = {**state["virtual"], DUE: True}
    if restart and state["groups"]:
        dropped = dict(state["dropped"])
        dropped["branch"] = dropped.get("branch", 0) + len(state["groups"])
        schedule = {**state["schedule"], "groups": []}
        found |= {"groups": {}, "rollouts": None, "dropped": dropped, "schedule": schedule}
    return found


def _sampler(state: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """The state of a sampler of these tasks: those that both have go on, and new ones begin."""
    history = {name: rates for name, rates in state["history"].items() if name.partition("/")[0] in tasks}
    return {
        **state,
        "tasks": sorted(tasks),
        "next_index": {name: state["next_index"].get(name, 0) for name in tasks},
        "skipped": {name: state["skipped"].get(name, 0) for name in tasks},
        "history": history,
        "retired": {name: state["retired"].get(name, []) for name in tasks},
    }
