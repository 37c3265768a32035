"""What a checkpoint keeps beside the trainer's own: the books, the sampler, and every rollout not trained on yet.

The state is plain JSON inside the checkpoint, whose manifest vouches for it. Rollouts are too large for that: they lie
in a file of their own beside the checkpoints, named by its SHA-256, which the state names.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moe.checkpoint.folder import finished, read_state
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.recipe.types import Rollout
from scalelab.run.folder import write_whole
from tasks.types import Prompt

if TYPE_CHECKING:
    from scalelab.run.driver import Driver


@dataclass
class Group:
    """The completions of one drawn prompt, as they come in."""

    prompt: Prompt
    by_number: dict[int, Rollout] = field(default_factory=dict)

    @property
    def rollouts(self) -> list[Rollout]:
        """What has come in, in the order of the requests and not of arrival."""
        return [self.by_number[number] for number in sorted(self.by_number)]


def capture(driver: Driver, folder: Path) -> dict[str, Any]:
    """The state of a run between two steps (JSON-able); its rollouts are written to `folder`.

    An evaluation that runs is not kept: a resumed run measures the weights of the checkpoint in its place.
    """
    groups = driver.groups
    rollouts = [rollout for group in groups.values() for rollout in group.rollouts]
    return {
        "schedule": driver.schedule.state_dict(),
        "sampler": driver.sampler.state_dict(),
        "ledger": driver.ledger.state_dict(),
        "drawn": driver.drawn,
        "refilled": dict(driver.refilled),
        "measured": driver.measured,
        "measure_from": driver.measurement.version if driver.measurement else driver.measure_from,
        "groups": {
            name: {"prompt": asdict(group.prompt), "numbers": sorted(group.by_number)} for name, group in groups.items()
        },
        "rollouts": write_rollouts(folder, rollouts) if rollouts else None,
    }


def restore(driver: Driver, state: dict[str, Any], folder: Path) -> None:
    """Put a run back to what `capture` saw; its ledger goes on, since what was spent is spent.

    Raises:
        LabError: the rollouts are missing or damaged.
    """
    driver.schedule.load_state_dict(state["schedule"])
    driver.sampler.load_state_dict(state["sampler"])
    driver.drawn, driver.measured = state["drawn"], state["measured"]
    driver.refilled, driver.measure_from = Counter(state["refilled"]), state["measure_from"]
    driver.training = driver.updating = False
    driver.measurement = None
    rollouts = iter(read_rollouts(folder, state["rollouts"]) if state["rollouts"] else [])
    driver.groups = {
        name: Group(_prompt(group["prompt"]), {number: next(rollouts) for number in group["numbers"]})
        for name, group in state["groups"].items()
    }


def _prompt(stored: dict[str, Any]) -> Prompt:
    return Prompt(**{**stored, "chat": tuple(stored["chat"])})


def write_rollouts(folder: Path, rollouts: Sequence[Rollout]) -> str:
    """Write rollouts to a file in `folder`, and return its name: their SHA-256.

    Arrays of one field are laid end to end along their first axis; all else is JSON.
    """
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in (one.name for one in fields(Rollout)):
        values = [getattr(rollout, name) for rollout in rollouts]
        present = [value for value in values if isinstance(value, np.ndarray)]
        if present:
            arrays[name] = np.concatenate(present)
            arrays[f"{name}.lengths"] = np.array([-1 if value is None else len(value) for value in values])
        else:
            plain[name] = values
    arrays["plain"] = np.frombuffer(json.dumps(plain).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getvalue()
    name = f"rollouts_{hashlib.sha256(content).hexdigest()}.npz"
    write_whole(folder / name, content)
    return name


def read_rollouts(folder: Path, name: str) -> list[Rollout]:
    """Read what `write_rollouts` wrote.

    Raises:
        LabError: the file is missing, or its content is not what its name says.
    """
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise LabError(f"{folder / name} is missing: the checkpoint that names it cannot be resumed from") from None
    if f"rollouts_{hashlib.sha256(content).hexdigest()}.npz" != name:
        raise LabError(f"{folder / name} is damaged: the checkpoint that names it cannot be resumed from")
    with np.load(io.BytesIO(content)) as arrays:
        columns = json.loads(arrays["plain"].tobytes())
        columns["spans"] = [tuple(map(tuple, spans)) for spans in columns["spans"]]
        for field_name in (one.name for one in fields(Rollout) if one.name in arrays):
            columns[field_name] = _cut(arrays[field_name], arrays[f"{field_name}.lengths"])
    return [Rollout(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _cut(joined: np.ndarray, lengths: np.ndarray) -> list[np.ndarray | None]:
    parts = np.split(joined, np.cumsum(np.maximum(lengths, 0))[:-1])
    return [None if length < 0 else part for part, length in zip(parts, lengths, strict=True)]


def prune_rollouts(folder: Path, keep: str | None = None) -> None:
    """Delete the rollouts that no finished checkpoint in `folder` names, but for `keep`."""
    try:
        named = {keep, *(read_state(path)["rollouts"] for path in finished(folder))}
    except MoeError:  # nobody knows what a damaged one names
        return
    for path in folder.glob("rollouts_*.npz"):
        if path.name not in named:
            path.unlink()
