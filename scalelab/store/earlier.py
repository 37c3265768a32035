"""Remains of earlier processes in a run's folder: the account by its journal, whole checkpoints, unfinished files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import checkpoints_by_step, digest
from moe.durable import PARTIAL
from moe.errors import printable
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.store.account import Account, replay
from scalelab.store.chain import JOURNAL, ChainEntry, read_chain
from scalelab.store.lines import read_lines
from scalelab.store.manifest import CHECKPOINTS, FORMAT, JOURNAL_KEY, MANIFEST, ROLLOUTS, VIEWS, read_run_manifest


def remove_unfinished(path: Path) -> None:
    """Delete what earlier processes have begun, so that one that stands still cannot finish it later."""
    for left in (*path.glob(f"*{PARTIAL}"), *(path / ROLLOUTS).glob(f"*{PARTIAL}")):
        left.unlink(missing_ok=True)


def earlier_account(path: Path) -> tuple[Account, dict[str, Any] | None]:
    """Content of the journal of a folder; for a run that an earlier version began, also the content of its first line.

    Raises:
        LabError: the journal is damaged, or gone.
    """
    if (account := read_account(path)) is not None:
        return account, None
    manifest = read_run_manifest(path) if (path / MANIFEST).exists() else {}
    if JOURNAL_KEY in manifest:
        raise LabError(f"{path} has no {JOURNAL}, without which nobody knows what it did: put it back")
    lines = {name: read_lines(path / name) for name in VIEWS if (path / name).exists()}
    if not manifest and not any(lines.values()):
        return Account(), None
    adopted = {
        "facts": {**manifest, JOURNAL_KEY: FORMAT},
        "lines": lines,
        "files": {f"{ROLLOUTS}/{one.name}": list(digest(one)) for one in (path / ROLLOUTS).glob("*.parquet")},
        "checkpoints": present_checkpoints(path),
    }
    account = Account()
    account.apply(ChainEntry(1, 1, "adopt", adopted, ""))
    return account, adopted


def read_account(path: Path) -> Account | None:
    """The account of a run by its journal; None if it has none, or one without a whole line.

    Raises:
        LabError: the journal is damaged.
    """
    if not (path / JOURNAL).exists():
        return None
    chain = read_chain(read_whole(path / JOURNAL))
    if chain.problems:
        raise LabError(f"{path}: {chain.problems[0]}: put {JOURNAL} back from a copy, or start another run")
    if not chain.entries:  # emptied since, where there is a manifest: the files that follow from it would be, too
        return None
    try:
        return replay(chain.entries)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LabError(f"{path / JOURNAL} is not what this version writes ({printable(error)})") from error


def claimed_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run as its journal has it; that of its file if there is no journal, or a damaged one.

    Raises:
        LabError: there is none.
    """
    with suppress(LabError):
        account = read_account(path)
        if account is not None and account.manifest:
            return account.manifest
    return read_run_manifest(path)


def known_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run as its file shows it; as its journal has it if the file is lost or damaged.

    Raises:
        LabError: there is none.
    """
    try:
        return read_run_manifest(path)
    except LabError:
        return claimed_manifest(path)


def last_epoch(path: Path) -> int:
    """Number of the last process that wrote into a run's journal; 0 if there is none.

    Raises:
        LabError: the journal is damaged.
    """
    account = read_account(path)
    return 0 if account is None else account.epoch


def present_checkpoints(path: Path, last: int | None = None) -> dict[int, str]:
    """Hashes of the manifests of a run's whole checkpoints, by step.

    Args:
        path: the run's folder.
        last: leave out those of later steps.
    """
    found = checkpoints_by_step(path / CHECKPOINTS)
    return {step: digest(one / CHECKPOINT)[1] for step, one in found.items() if last is None or step <= last}
