"""Names of runs' folders: the next that is free, the last that exists, and those of runs that made nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from moe.durable import PARTIAL
from scalelab.errors import LabError
from scalelab.store.chain import JOURNAL
from scalelab.store.lease import leases
from scalelab.store.manifest import CHECKPOINTS, CONFIG, LIBRARIES_LOG, MANIFEST, ROLLOUTS, VIEWS, read_run_manifest
from scalelab.store.status_file import STATUS

_BEGUN = frozenset({MANIFEST, CONFIG, JOURNAL, STATUS, LIBRARIES_LOG, "lock", "tensorboard"})
"""Names in the folder of a run that has made nothing yet, besides empty files and folders."""


def holds_run(path: Path) -> bool:
    """True for the folder of a run: it has a manifest, or the journal that this follows from."""
    return (path / MANIFEST).exists() or (path / JOURNAL).exists()


def made_nothing(path: Path) -> bool:
    """True for an empty folder, and for that of a run that failed before it made anything, as one that is refused."""
    held = set(leases(path).values())
    entries = [entry for entry in path.iterdir() if entry not in held]
    full = [entry.name for entry in entries if not _is_empty(entry)]
    if not all(name in _BEGUN or name.endswith(PARTIAL) for name in full):
        return False
    if not (path / MANIFEST).exists():  # killed before it had one; else somebody's own folder, whose files may be empty
        return (path / JOURNAL).exists() or (not full and all(_begins(entry.name) for entry in entries))
    return read_run_manifest(path).get("status") == "failed"


def _begins(name: str) -> bool:
    """True for the name of a file or folder that a run makes when it begins."""
    return name in _BEGUN or name in VIEWS or name in (CHECKPOINTS, ROLLOUTS) or name.endswith(PARTIAL)


def _is_empty(path: Path) -> bool:
    return next(path.iterdir(), None) is None if path.is_dir() else path.stat().st_size == 0


def clear(path: Path) -> bool:
    """Remove what `made_nothing` allows, and say if there was anything; a lease stays with its holder."""
    held = set(leases(path).values())
    entries = [entry for entry in path.iterdir() if entry not in held]
    for entry in entries:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return bool(entries)


def free_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/NAME`, or the first of `runs/NAME-2`, `runs/NAME-3`, … that does not exist yet.

    The last one that exists is taken again if its run failed before it made anything.
    """
    last: Path | None = None
    for path in _candidates(_folder(name, root)):
        if not path.exists():
            return last if last is not None and last.is_dir() and _free(last) else path
        last = path
    raise AssertionError("unreachable: the candidates never end")


def _free(path: Path) -> bool:
    try:
        return any(path.iterdir()) and made_nothing(path)
    except (LabError, OSError):  # whatever it is, it is something
        return False


def latest_folder(name: str, root: Path = Path("runs")) -> Path:
    """The last of `runs/NAME`, `runs/NAME-2`, … that exists.

    Raises:
        LabError: there is none.
    """
    existing = list(takewhile(Path.exists, _candidates(_folder(name, root))))
    if not existing:
        raise LabError(f"{_folder(name, root)} does not exist: give the folder of the run to resume, or --out")
    return existing[-1]


def _folder(name: str, root: Path) -> Path:
    """The folder of a name below `root`: every part of the name is an ordinary one there."""
    parts = [re.sub(r"[^\w.\-]", "_", part) for part in name.split("/")]
    return root.joinpath(*("_" * len(part) if set(part) == {"."} else part for part in parts if part))


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1
