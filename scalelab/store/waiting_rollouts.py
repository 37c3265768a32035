"""Finished rollouts that no step has trained on yet, kept beside the checkpoints.

They are too large for a checkpoint's JSON state, so they lie in a file of their own, named by its SHA-256, which the
state names.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from moe.checkpoint.folder import finished_checkpoints, read_state
from moe.durable import write_whole
from moe.errors import MoeError
from scalelab.errors import LabError
from scalelab.guarded import open_whole
from scalelab.recipe.types import Rollout, is_held
from scalelab.store.recovery import lost_rollouts


def write_rollouts(folder: Path, rollouts: Sequence[Rollout]) -> str:
    """Write rollouts to a file in `folder`, and return its name: their SHA-256.

    Arrays of one field are laid end to end along their first axis; all else is JSON. Records of experts that lie
    elsewhere are left out: they have fifty times the size of the rest.
    """
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in (one.name for one in fields(Rollout)):
        values = [getattr(rollout, name) for rollout in rollouts]
        if name == "routed_TLK":
            values = [None if is_held(value) else value for value in values]
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
        LabError: the file is missing, its content is not what its name says, or it is packed.
    """
    if problem := lost_rollouts(folder, {"rollouts": name}):
        raise LabError(problem)
    with open_whole(folder / name) as file, np.load(file) as arrays:
        if any(one.compress_type != zipfile.ZIP_STORED for one in arrays.zip.infolist()):  # it could unpack to anything
            raise LabError(f"{folder / name} is packed, as this version writes none: remove it")
        columns = json.loads(arrays["plain"].tobytes())
        columns["spans"] = [tuple(map(tuple, spans)) for spans in columns["spans"]]
        for field_name in (one.name for one in fields(Rollout) if one.name in arrays):
            columns[field_name] = _cut(arrays[field_name], arrays[f"{field_name}.lengths"])
    return [Rollout(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _cut(joined: np.ndarray, lengths: np.ndarray) -> list[np.ndarray | None]:
    parts = np.split(joined, np.cumsum(np.maximum(lengths, 0))[:-1])
    return [None if length < 0 else part for part, length in zip(parts, lengths, strict=True)]


def prune_rollouts(folder: Path, keep: Iterable[str] = (), allowed: Callable[[], None] = lambda: None) -> None:
    """Delete the files of rollouts that no finished checkpoint in `folder` names.

    Args:
        folder: of the checkpoints.
        keep: names of files to keep.
        allowed: called before each deletion; raises where another process has taken the run over, whose checkpoint
            under way may name the file.
    """
    try:
        named = {*keep, *(read_state(path)["rollouts"] for path in finished_checkpoints(folder))}
    except MoeError:  # the files that a damaged one names are not known
        return
    for path in folder.glob("rollouts_*.npz"):
        if path.name not in named:
            allowed()
            path.unlink()
