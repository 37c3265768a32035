"""Compare a run's files with its journal: whatever was changed, lost, doubled or moved is named.

A process that ends between two writes leaves traces that are no damage, and are noted: one record that stands in a file
of lines and not in the journal yet, or the last change of the manifest or of a return to a checkpoint, which has not
reached the files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moe.checkpoint.folder import MANIFEST as CHECKPOINT
from moe.checkpoint.folder import CheckpointPolicy, checkpoints_by_step, digest
from moe.errors import printable
from scalelab.guarded import read_whole
from scalelab.store.account import Account, replay
from scalelab.store.chain import JOURNAL, Chain, ChainEntry, read_chain
from scalelab.store.lines import as_text
from scalelab.store.manifest import (
    CHECKPOINTS,
    EVALS,
    JOURNAL_KEY,
    MANIFEST,
    ROLLOUTS,
    SECOND_COPY,
    VIEWS,
    WALL,
    manifest_text,
)

_TRIES = 20
"""Attempts to read all files between two lines of a run that goes on."""


@dataclass
class RunFiles:
    """Content of a run's files at one moment."""

    journal: bytes | None
    manifest: bytes
    views: dict[str, bytes]


@dataclass
class Proof:
    """Result of the comparison.

    Attributes:
        account: what the journal says; None if there is no journal, or one that cannot be replayed.
        problems: what is wrong, a line each.
        notes: what is worth knowing and wrong with nothing.
    """

    account: Account | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def snapshot(path: Path) -> RunFiles:
    """Read a run's files while nothing is added to its journal, as far as that can be had."""
    for _ in range(_TRIES):
        journal = _bytes(path / JOURNAL)
        views = {name: _bytes(path / name) or b"" for name in VIEWS}
        manifest = _bytes(path / MANIFEST) or b""
        if _bytes(path / JOURNAL) == journal:
            break
    return RunFiles(journal, manifest, views)


def prove(path: Path, manifest: dict[str, Any], contents: bool = True) -> Proof:
    """Compare all files of a run with its journal.

    Args:
        path: the run's folder.
        manifest: content of its manifest.
        contents: hash the files that it names; otherwise compare their sizes.
    """
    proof, files = Proof(), snapshot(path)
    if files.journal is None:
        if JOURNAL_KEY in manifest:
            proof.problems.append(f"{JOURNAL} is missing, which all other files follow from")
        else:
            proof.notes.append("there is no journal, as an earlier version began the run: only its books were compared")
        return proof
    chain = read_chain(files.journal)
    proof.problems += chain.problems
    if chain.torn:
        proof.notes.append(f"{JOURNAL} ends with a torn line, which --resume cuts off")
    try:
        proof.account = replay(chain.entries)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        proof.problems.append(f"{JOURNAL} is not what this version writes ({printable(error)})")
        return proof
    proof.problems += _epochs(chain)
    for name in VIEWS:
        _compare(name, files.views[name], proof, chain.entries)
    _compare_manifest(files.manifest, proof, chain.entries)
    proof.problems += _files(path, proof, contents)
    proof.problems += _checkpoints(path, proof)
    return proof


def _bytes(path: Path) -> bytes | None:
    return read_whole(path) if path.exists() else None


def _earlier(entries: list[ChainEntry], kinds: tuple[str, ...]) -> Iterator[Account]:
    """The accounts before the last lines, as far as files follow these later, and back to the first of some kinds.

    Args:
        entries: all lines.
        kinds: of lines that a file follows.
    """
    for end in range(len(entries) - 1, -1, -1):
        if entries[end].kind not in ("facts", "files", "checkpoint", "undo", "fork"):
            return
        if entries[end].kind in kinds:
            yield replay(entries[:end])
            return


def _epochs(chain: Chain) -> Iterator[str]:
    """Check that no process wrote after a later one had taken the run over."""
    last = 0
    for entry in chain.entries:
        if entry.epoch < last:
            yield f"{JOURNAL}, line {entry.number}: of process {entry.epoch}, which had lost the run to process {last}"
        last = max(last, entry.epoch)


def _compare(name: str, content: bytes, proof: Proof, entries: list[ChainEntry]) -> None:
    """Compare a file of lines with the journal."""
    assert proof.account is not None
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        proof.notes.append(f"{name} ends with a torn line, which --resume cuts off")
    found = [line.rstrip(b"\r") for line in content[:whole].split(b"\n")[:-1]]
    if any(not line.strip() for line in found):
        proof.notes.append(f"{name} has blank lines")
        found = [line for line in found if line.strip()]
    expected = _lines(proof.account, name)
    if found == expected:
        return
    if any(found == _lines(before, name) for before in _earlier(entries, ("undo", "fork"))):
        proof.notes.append(f"{name} lacks the last return to a checkpoint, which --resume brings")
        return
    more = found[len(expected) :]
    if found[: len(expected)] == expected and _under_way(name, more, expected):
        proof.notes.append(f"{name} has a record that was being written when the run ended; --resume drops it")
        return
    proof.problems.append(f"{name}: {_difference(found, expected)}")


def _lines(account: Account, name: str) -> list[bytes]:
    return [line[:-1].encode() for line in as_text(account.views[name])]


def _under_way(name: str, more: list[bytes], expected: list[bytes]) -> bool:
    """True if lines beyond the journal's can be one record that was being written."""
    records = [_json(line) for line in more]
    steps = {record.get("step") for record in records}
    known = {_json(line).get("step") for line in expected}
    several = name in (EVALS, WALL)
    if set(more) & set(expected) or (name == EVALS and steps & known):
        return False
    tasks = Counter(record.get("task") for record in records)
    return bool(records) and len(steps) == 1 and (len(records) == 1 or (several and max(tasks.values()) == 1))


def _json(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _difference(found: list[bytes], expected: list[bytes]) -> str:
    """The first difference between the lines that are there and those that the journal has."""
    at = next((n for n, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), min(len(found), len(expected)))
    missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not missing and not more:
        return f"lines stand in another order than in the journal, from line {at + 1} on"
    if not more:
        where = _name(expected[at])
        return f"{missing.total()} lines of the journal are missing, the first after line {at}{where}"
    if not missing:
        twice = found[at] in expected
        return f"line {at + 1}{_name(found[at])} is {'there twice' if twice else 'in no line of the journal'}"
    new, old = _json(found[at]) if at < len(found) else {}, _json(expected[at]) if at < len(expected) else {}
    keys = [key for key in (old | new) if old.get(key) != new.get(key)]
    told = "".join(f"; {_change(key, old, new)}" for key in keys[:2])
    return f"line {at + 1}{_name(expected[at] if at < len(expected) else b'')} was changed{told}"


def _change(key: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    """The change of an entry, in quotes where only these tell a text from a number."""
    show = repr if str(old.get(key)) == str(new.get(key)) else str
    return f"{key} is {show(new.get(key))[:40]}, was {show(old.get(key))[:40]}"


def _name(line: bytes) -> str:
    record = _json(line)
    return f" (step {record['step']})" if isinstance(record.get("step"), int) else ""


def _compare_manifest(content: bytes, proof: Proof, entries: list[ChainEntry]) -> None:
    assert proof.account is not None
    found = content.replace(b"\r\n", b"\n").rstrip()
    if found == _file_of(proof.account.manifest):
        return
    earlier = _earlier(entries, ("facts", "fork"))
    if any(found == _file_of(before.manifest) for before in earlier):
        proof.notes.append(f"{MANIFEST} lacks the last facts of the journal, which --resume brings")
        return
    if not found:
        proof.problems.append(f"{MANIFEST} is missing")
        return
    new, old = _json(content), json.loads(manifest_text(proof.account.manifest))
    keys = [key for key in (old | new) if old.get(key) != new.get(key)]
    told = "; ".join(_change(key, old, new) for key in keys[:3])
    proof.problems.append(f"{MANIFEST} was changed: {told or 'in its form'}")


def _file_of(manifest: dict[str, Any]) -> bytes:
    """Content of a manifest's file, which is not there before the first facts."""
    return manifest_text(manifest).encode().rstrip() if manifest else b""


def _files(path: Path, proof: Proof, contents: bool) -> Iterator[str]:
    """Check the files that the journal vouches for."""
    assert proof.account is not None
    whole = {part: (path / part).is_dir() for part in (ROLLOUTS, CHECKPOINTS)}
    proof.notes.extend(f"there is no folder {part}: it was not looked at" for part, there in whole.items() if not there)
    for name, (size, sha256) in proof.account.files.items():
        file = path / name
        if not whole.get(name.partition("/")[0], True):
            continue
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != size:
            yield f"{name} has {file.stat().st_size} of {size} bytes"
        elif contents and digest(file)[1] != sha256:
            yield f"{name} was changed since it was written"


def _checkpoints(path: Path, proof: Proof) -> Iterator[str]:
    """Check that the checkpoints are those that the journal names, and that none is missing that should be kept."""
    assert proof.account is not None
    root, noted = path / CHECKPOINTS, proof.account.checkpoints
    if not root.is_dir():
        return
    there = checkpoints_by_step(root)
    for step, one in there.items():
        if step in noted and _digest(one / CHECKPOINT) not in (noted[step], None):
            yield f"{one.name} is not the checkpoint that was taken at step {step}"
    policy = CheckpointPolicy(keep_last=1)
    if not (path / SECOND_COPY).exists():
        known = proof.account.manifest.get("checkpoint_policy")
        policy = CheckpointPolicy(**known) if isinstance(known, dict) else policy
    for step in sorted(policy.kept(noted.keys() | there.keys()) & noted.keys() - there.keys()):
        yield f"the checkpoint of step {step} is missing"


def _digest(path: Path) -> str | None:
    """SHA-256 of a file; None if it has gone meanwhile, as in a run that goes on."""
    try:
        return digest(path)[1]
    except FileNotFoundError:
        return None
