"""Append-only lines that prove themselves: each holds a hash of its own content and the hash of the line before.

A line is a JSON object. Its first entry, `hash`, is the SHA-256 of the bytes that follow that entry, up to the line's
end; its second, `before`, is the hash of the line before, 64 zeros in the first line. So a changed byte shows in its
own line, and a line that is missing, doubled or moved shows in the next one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from moe.durable import append, write_whole
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from scalelab.jsonl import plain
from scalelab.store.lease import FencedError

log = logging.getLogger(__name__)

JOURNAL = "journal.jsonl"
"""Name of the file in a run's folder."""

FIRST = "0" * 64
"""Hash before the first line."""

_HASH, _REST = b'{"hash": "', b'", '


@dataclass(frozen=True)
class ChainEntry:
    """A line of the journal.

    Attributes:
        number: from 1.
        epoch: of the process that wrote it; see `scalelab.store.lease`.
        kind: of what it records; see `scalelab.store.account`.
        body: all entries of the line but `hash` and `before`.
        hash: of the line.
    """

    number: int
    epoch: int
    kind: str
    body: dict[str, Any]
    hash: str


@dataclass
class Chain:
    """Content of a journal.

    Attributes:
        entries: the lines that are whole, in the order of the file.
        problems: what is wrong with the others and with their order, a line each.
        whole: bytes up to the end of the last line that ends.
        torn: whether a part of a line follows, as after a crash.
    """

    entries: list[ChainEntry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    whole: int = 0
    torn: bool = False

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self.entries[-1].hash if self.entries else FIRST


def line_of(before: str, body: dict[str, Any]) -> tuple[bytes, str]:
    """A line with its end, and its hash.

    Args:
        before: hash of the line before.
        body: the rest of the line; NaN and infinities are written as null.
    """
    rest = json.dumps({"before": before, **plain(body)}, ensure_ascii=False, allow_nan=False).encode()[1:]
    digest = hashlib.sha256(rest).hexdigest()
    return _HASH + digest.encode() + _REST + rest + b"\n", digest


def read_chain(content: bytes) -> Chain:
    """Read and verify the bytes of a journal."""
    chain = Chain(whole=content.rfind(b"\n") + 1)
    chain.torn = chain.whole < len(content)
    before, seen = FIRST, 0
    for number, line in enumerate(content[: chain.whole].split(b"\n")[:-1], 1):
        entry, said = _read(line.removesuffix(b"\r"))
        if entry is None:
            chain.problems.append(f"{JOURNAL}, line {number}: changed since it was written")
            before = ""
            continue
        if before and said != before:
            chain.problems.append(f"{JOURNAL}, line {number}: {_misplaced(entry.number, seen)}")
        before, seen = entry.hash, entry.number
        chain.entries.append(entry)
    return chain


def _read(line: bytes) -> tuple[ChainEntry | None, str]:
    """The entry of a line and the hash before it; None if its own hash does not hold."""
    start, end = len(_HASH), len(_HASH) + len(FIRST)
    rest = line[end + len(_REST) :]
    said = line[start:end]
    if not (line.startswith(_HASH) and line[end:].startswith(_REST)):
        return None, ""
    if hashlib.sha256(rest).hexdigest().encode() != said:
        return None, ""
    try:
        body = json.loads(b"{" + rest)
        before = body.pop("before")
        return ChainEntry(int(body["number"]), int(body["epoch"]), str(body["kind"]), body, said.decode()), str(before)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a hash that was made to hold
        return None, ""


def _misplaced(number: int, last: int) -> str:
    if number <= last:
        return f"line {number} of the journal stands after line {last}: doubled or moved"
    if number > last + 1:
        return f"the lines {last + 1} to {number - 1} before it are missing"
    return "does not follow the line before it"


class ChainFile:
    """Writer of a journal, from its last line on.

    Opening gives the file a new inode, so that what a process writes that had it open before is lost.

    Args:
        path: the file; need not be there.
        epoch: of this process.
        allowed: called before and after each write; raises if another process has taken the run over.

    Raises:
        LabError: a line was changed, lost or moved.
    """

    def __init__(self, path: Path, epoch: int, allowed: Callable[[], None] = lambda: None) -> None:
        self._path, self.epoch, self._allowed = path, epoch, allowed
        content = read_whole(path) if path.exists() else b""
        self.chain = read_chain(content)
        if self.chain.problems:
            raise LabError(
                f"{path} does not hold: {self.chain.problems[0]}: put it back from a copy, or start another run"
            )
        if self.chain.entries and self.chain.entries[-1].epoch > epoch:
            raise FencedError(f"another process has gone on with {path.parent} meanwhile: this one stops")
        if self.chain.torn:
            log.warning("%s: cut off a torn last line", path)
        if content:
            write_whole(path, content[: self.chain.whole], allowed)
        self._number, self._head = len(self.chain.entries), self.chain.head
        self._file = FileIO(path, "a")
        self._broken = False
        self._one_at_a_time = threading.RLock()

    def check(self) -> None:
        """Make sure that this process may write.

        Raises:
            FencedError: another process has taken the run over, and perhaps ended since.
        """
        self._allowed()
        here = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            raise FencedError(f"{self._path} is gone: this process stops") from None
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FencedError(f"{self._path} was taken over by another process while this one stood still: it stops")

    def append(self, kind: str, **body: Any) -> ChainEntry:
        """Append a line; it is on disk when this returns.

        Raises:
            LabError: another process has taken the run over, or an earlier line could not be taken back.
            OSError: the disk refuses it; nothing of it is there.
        """
        with self._one_at_a_time:
            return self._append(kind, body)

    def _append(self, kind: str, body: dict[str, Any]) -> ChainEntry:
        self.check()
        if self._broken:
            raise LabError(f"{self._path} could not be put back after a write that failed: go on with --resume")
        whole = {"number": self._number + 1, "epoch": self.epoch, "kind": kind, **body}
        line, digest = line_of(self._head, whole)
        before = self._path.stat().st_size
        try:
            append(self._file, line)
        except OSError:
            self._broken = self._path.stat().st_size != before
            raise
        self.check()
        self._number, self._head = self._number + 1, digest
        return ChainEntry(self._number, self.epoch, kind, whole, digest)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
