"""Read the problems of a data set, from the hub at a fixed revision or from a local file.

A set that the table does not pin is pinned where it is first used: the commit that it was read at is written to
`revisions.json` in the cache folder, and later runs on the machine read the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tasks.cache import cache_folder
from tasks.data.formats import Item
from tasks.data.hub import REVISIONS, Source, source
from tasks.data.rows import Row, RowError, numbered_rows
from tasks.errors import TaskError
from tasks.text import clean

_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubOrigin(Protocol):
    """A repository on the hub, and the place of the same rows below a local folder."""

    @property
    def hub(self) -> str:
        """The repository."""
        ...

    @property
    def local(self) -> str:
        """File or folder below a local folder."""
        ...


@dataclass(frozen=True)
class SetAside:
    """A row that is not used, by its number from 1, and why."""

    row: int
    reason: str


@dataclass(frozen=True)
class Loaded:
    """The rows of a data set.

    Attributes:
        items: the number of each usable row, and its problem.
        set_aside: the others.
        columns: places from which golds were taken, and how often.
    """

    items: list[tuple[int, Item]]
    set_aside: list[SetAside]
    columns: dict[str, int]


def load(dataset: str, folder: str | None = None, revision: str | None = None) -> list[Item]:
    """All usable problems of a data set, in its order.

    Args:
        dataset: a name in the table of `tasks.data.hub`.
        folder: local folder with files named as in the table; None downloads from the hub.
        revision: commit on the hub; None is the pinned one.

    Raises:
        TaskError: the data are not there, or no row is usable.
    """
    return [item for _, item in read_all(dataset, source(dataset), folder, revision).items]


def read_all(name: str, origin: Source, folder: str | None = None, revision: str | None = None) -> Loaded:
    """Every row of a data set: as a problem, or set aside.

    Args:
        name: what the set goes by in messages.
        origin: where it is and how its rows read.
        folder: local folder; None downloads from the hub.
        revision: commit on the hub; None is the pinned one.

    Raises:
        TaskError: the data are not there, no row is usable, or a row does not tell which column means what.
    """
    numbered = (
        enumerate(_hub_rows(name, origin, revision), 1)
        if folder is None
        else numbered_rows(Path(folder) / origin.local, origin.columns)
    )
    loaded = Loaded([], [], {})
    for number, row in numbered:
        try:
            if isinstance(row, RowError):
                raise row
            item = _read(origin, row)
        except RowError as problem:
            if problem.unclear:
                raise TaskError(f"{name}: row {number} {problem}") from None
            loaded.set_aside.append(SetAside(number, str(problem)))
        else:
            loaded.items.append((number, item))
            loaded.columns[item.columns] = loaded.columns.get(item.columns, 0) + 1
    if not loaded.items:
        first = loaded.set_aside[0] if loaded.set_aside else None
        reason = f"row {first.row} {first.reason}" if first else "it is empty"
        raise TaskError(
            f"data set {name} has no usable row ({reason}): is {origin.local if folder else origin.hub} one?"
        )
    return loaded


def _read(origin: Source, row: Row) -> Item:
    try:
        item = origin.read(row)
        gold = clean(item.gold) if isinstance(item.gold, str) else item.gold
        return replace(item, problem=clean(item.problem), gold=gold)
    except RowError:
        raise
    except TaskError as problem:
        raise RowError(f"unreadable tests: {problem}") from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        SyntaxError,
        RecursionError,
    ) as problem:
        raise RowError(f"is not of the set's format: {type(problem).__name__}: {str(problem)[:100]}") from None
    except (zlib.error, pickle.UnpicklingError) as problem:
        raise RowError(f"has tests that cannot be unpacked: {str(problem)[:100]}") from None


def provenance(dataset: str, folder: str | None = None, revision: str | None = None) -> dict[str, str]:
    """Origin of a data set, exact enough to get the same rows again: hub and commit, or file and SHA-256.

    Raises:
        TaskError: the file is not there, or the hub does not answer for a set that is not pinned.
    """
    origin = source(dataset)
    if folder is None:
        return {"dataset": dataset, "hub": origin.hub, "revision": pinned(dataset, revision)}
    path = Path(folder) / origin.local
    return {"dataset": dataset, "file": str(path), "sha256": digest(path)}


def digest(path: Path) -> str:
    """The SHA-256 of a file's content, hexadecimal.

    Raises:
        TaskError: there is no such file.
    """
    if not path.is_file():
        raise TaskError(f"no file {path}: put the data there, or leave the folder out to download them")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pinned(dataset: str, revision: str | None = None) -> str:
    """The commit to read a data set at: the one given, else the table's, else the one of its first use.

    Raises:
        TaskError: `revision` is no full commit hash, or the hub does not answer.
    """
    return commit(dataset, source(dataset), revision)


def commit(dataset: str, origin: HubOrigin, revision: str | None = None) -> str:
    """The commit of a repository: the one given, else the table's, else the one of its first use.

    Raises:
        TaskError: `revision` is no full commit hash, or the hub does not answer.
    """
    chosen = revision or REVISIONS.get(origin.hub)
    if chosen is not None:
        if not _COMMIT.fullmatch(chosen):
            raise TaskError(f"revision of {dataset} is {chosen!r}: give the 40 hexadecimal digits of a commit")
        return chosen
    book = cache_folder() / "revisions.json"
    known: dict[str, str] = json.loads(book.read_text()) if book.is_file() else {}
    if origin.hub not in known:
        known[origin.hub] = _newest(dataset, origin)
        book.parent.mkdir(parents=True, exist_ok=True)
        partial = book.with_name(f"{book.name}.{os.getpid()}.partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.write(json.dumps(known, indent=2, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the name without the content
        os.replace(partial, book)
    return known[origin.hub]


def _newest(dataset: str, origin: HubOrigin) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(origin.hub).sha)
    except Exception as problem:  # the hub client raises dozens of kinds
        raise _unreachable(dataset, origin, problem) from problem


def _hub_rows(dataset: str, origin: Source, revision: str | None) -> Iterator[Row]:
    from datasets import load_dataset

    commit = pinned(dataset, revision)
    try:
        if origin.files:
            paths = [f"hf://datasets/{origin.hub}@{commit}/{file}" for file in origin.files]
            yield from load_dataset("json", data_files=paths, split="train")
        else:
            for config in origin.configs:
                yield from load_dataset(origin.hub, config, split=origin.split, revision=commit)
    except Exception as problem:  # the hub client raises dozens of kinds
        raise _unreachable(dataset, origin, problem) from problem


def hub_stream(dataset: str, origin: HubOrigin, revision: str) -> Iterator[Row]:
    """The rows of a repository's default configuration, downloaded as they are read.

    Raises:
        TaskError: the hub does not answer, or has no such commit.
    """
    from datasets import load_dataset

    try:
        yield from load_dataset(origin.hub, split="train", revision=revision, streaming=True)
    except Exception as problem:  # the hub client raises dozens of kinds
        raise _unreachable(dataset, origin, problem) from problem


def _unreachable(dataset: str, origin: HubOrigin, problem: Exception) -> TaskError:
    cause = (str(problem).splitlines() or [type(problem).__name__])[0]
    return TaskError(
        f"cannot load data set {dataset} ({origin.hub}) from the hub: {cause}; "
        f"check the network, or give a folder that holds {origin.local}"
    )


def stream_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Rows of a Parquet, JSON or JSON lines file, some at a time; of Parquet only these columns, where it has them.

    Raises:
        TaskError: the file or a row of it is damaged, or holds something else.
    """
    for number, row in numbered_rows(path, columns):
        if isinstance(row, RowError):
            raise TaskError(f"{path}: row {number} {row}: fetch it again")
        yield row
