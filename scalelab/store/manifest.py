"""Names of the files in a run's folder, its manifest, and the SHA-256 of its configuration."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from moe.errors import printable
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.jsonl import plain
from scalelab.terminal import shell_path

MANIFEST, CONFIG, CHECKPOINTS, ROLLOUTS = "manifest.json", "config.gin", "checkpoints", "rollouts"
"""Names in a run's folder."""

METRICS, EVALS, ALARMS, FAULTS = "metrics.jsonl", "evals.jsonl", "alarms.jsonl", "faults.jsonl"
UNDONE, WALL = "undone.jsonl", "wall.jsonl"
VIEWS = (METRICS, EVALS, ALARMS, FAULTS, UNDONE, WALL)
"""Files of lines that follow from the journal."""

_COMPLETIONS = re.compile(r"rollouts/(step|train)_(\d{1,12})(?:_[\w-]+)?\.parquet")
"""Files of completions: `step_000100.parquet` is the evaluation at step 100, `step_000100_aime_24.parquet` one that was
made afterwards, `train_…` what a step trained on."""


SECOND_COPY = "second_copy"
"""File in the second copy of a run, which holds one checkpoint alone, until the run goes on from it."""


START = "start.gin"
"""File in a branch's folder: the configuration of the run that all began with, which says what the base model is."""


TOKENIZER = "tokenizer"
"""Folder beside the checkpoints, where an export looks for it."""


LIBRARIES_LOG = "libraries.log"
"""File in a run's folder for what libraries write to standard error in the command's process."""


CONFIG_SHA256 = "config_sha256"
"""Key of the SHA-256 of `config.gin`, in the manifest and in a checkpoint's state."""


JOURNAL_KEY, FORMAT = "journal", 1
"""Key of the manifest of a run that has a journal, and the version of its form."""


_KINDS: dict[str, type | tuple[type, ...]] = {
    **{"status": str, "reason": (str, type(None)), "resumed": list, "wall_seconds": (int, float), "cpu_seconds": dict},
    "cpu_seconds_by_role": dict,
}
"""Types of the manifest's entries that a resumed run reads."""


def completions_name(step: int, of_set: str = "", kind: str = "step") -> str:
    """Name, without its ending, of a file of completions.

    Args:
        step: of the weights, or of the training.
        of_set: of an evaluation that was made afterwards, the name of its set; else empty.
        kind: `step` of an evaluation, `train` of what a step trained on.
    """
    return f"{kind}_{step:06d}" + (f"_{re.sub(r'[^0-9A-Za-z-]', '_', of_set)}" if of_set else "")


def kind_and_step(name: str) -> tuple[str, int] | None:
    """Kind and step of a file of completions, as `completions_name` takes them; None for other files.

    Args:
        name: its path in the run's folder.
    """
    match = _COMPLETIONS.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def step_of_rollouts(name: str) -> int | None:
    """The step whose evaluation or training a file `rollouts/*.parquet` holds; None for other files."""
    found = kind_and_step(name)
    return found[1] if found else None


def read_run_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run's folder.

    Raises:
        LabError: there is none, or it is not readable.
    """
    try:
        manifest = json.loads(read_whole(path / MANIFEST))
    except FileNotFoundError:
        raise LabError(f"{path} is no folder of a run: it has no {MANIFEST}") from None
    except (ValueError, RecursionError) as error:
        raise LabError(f"{path / MANIFEST} is not JSON ({printable(error)}): mend it, or start another run") from None
    if not isinstance(manifest, dict):
        raise LabError(f"{path / MANIFEST} is no JSON object: mend it, or start another run")
    for name, kind in _KINDS.items():
        if name in manifest and not isinstance(manifest[name], kind):
            value = str(manifest[name])[:40]
            raise LabError(f"{path / MANIFEST}: {name} is {value!r}, which no run writes: mend it, or start another")
    return manifest


def config_sha256(path: Path) -> str:
    """SHA-256 of a run's `config.gin`.

    Raises:
        LabError: there is none.
    """
    try:
        return hashlib.sha256(read_whole(path / CONFIG)).hexdigest()
    except FileNotFoundError:
        raise LabError(f"{path} has no {CONFIG}, without which nobody knows what it ran: put it back") from None


def check_config(path: Path, vouched: dict[str, Any]) -> None:
    """Check that a run's `config.gin` is the one it began with.

    Args:
        path: the run's folder.
        vouched: its manifest, or the state of a checkpoint of it. Those of older versions vouch for nothing.

    Raises:
        LabError: the file was changed or cut off since: another run would go on under this one's name.
    """
    expected = vouched.get(CONFIG_SHA256)
    if expected is not None and config_sha256(path) != expected:
        raise LabError(
            f"{path / CONFIG} is not what this run began with (its SHA-256 differs): put the file back as it was, or "
            f"start another run with `scalelab run {shell_path(path / CONFIG)}`"
        )


def manifest_text(manifest: dict[str, Any]) -> str:
    """A run's manifest as it stands in its file."""
    return json.dumps(plain(manifest), indent=2) + "\n"
