"""Read the problems of a data set, from the hub at a fixed revision or from a local file.

A set that the table does not pin is pinned where it is first used: the commit that it was read at is written to
`revisions.json` in the cache folder, and later runs on the machine read the same one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tasks.data.formats import Item, Row
from tasks.data.hub import REVISIONS, Source, source
from tasks.errors import TaskError

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


def load(dataset: str, folder: str | None = None, revision: str | None = None) -> list[Item]:
    """All usable problems of a data set, in its order.

    Args:
        dataset: a name in the table of `tasks.data.hub`.
        folder: local folder with files named as in the table; None downloads from the hub.
        revision: commit on the hub; None is the pinned one.

    Raises:
        TaskError: the data are not there, or no row is usable.
    """
    origin = source(dataset)
    rows = _hub_rows(dataset, origin, revision) if folder is None else _file_rows(Path(folder) / origin.local)
    try:
        items = [item for row in rows if (item := origin.read(row)) is not None]
    except (AttributeError, IndexError, KeyError, TypeError) as problem:
        raise TaskError(
            f"data set {dataset} has a row that is not of its format ({type(problem).__name__}: {problem}): "
            f"does {origin.local if folder else origin.hub} hold {dataset}?"
        ) from problem
    if not items:
        raise TaskError(
            f"data set {dataset} has no usable row: is this the format that tasks/data/hub.py names for it?"
        )
    return items


def provenance(dataset: str, folder: str | None = None, revision: str | None = None) -> dict[str, str]:
    """Origin of a data set, exact enough to get the same rows again: hub and commit, or file and SHA-256.

    Raises:
        TaskError: the file is not there, or the hub does not answer for a set that is not pinned.
    """
    origin = source(dataset)
    if folder is None:
        return {"dataset": dataset, "hub": origin.hub, "revision": pinned(dataset, revision)}
    path = Path(folder) / origin.local
    return {"dataset": dataset, "file": str(path), "sha256": hashlib.sha256(_content(path)).hexdigest()}


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
    book = _cache_folder() / "revisions.json"
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


def _cache_folder() -> Path:
    return Path(os.environ.get("SCALELAB_CACHE", Path.home() / ".cache" / "scalelab"))


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


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise TaskError(f"no file {path}: put the data there, or leave the folder out to download them")
    return path.read_bytes()


def stream_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Rows of a Parquet, JSON or JSON lines file, some at a time; of Parquet only these columns, where it has them.

    Raises:
        TaskError: the file is damaged, or holds something else.
    """
    if path.suffix == ".json":
        yield from _file_rows(path)
        return
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                wanted = [name for name in columns if name in names] or names
                for batch in file.iter_batches(256, columns=wanted):
                    yield from batch.to_pylist()
            return
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as lines:
            for line in lines:
                if line.strip():
                    yield _object(path, json.loads(line))
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as problem:
        if isinstance(problem, TaskError):
            raise
        raise _damaged(path, problem) from None


def _object(path: Path, row: object) -> Row:
    if not isinstance(row, dict):
        raise TaskError(f"{path} holds something other than objects: a data set is one object per problem")
    return row


def _damaged(path: Path, problem: BaseException) -> TaskError:
    kind, cause = path.suffix.lstrip("."), (str(problem).splitlines() or [type(problem).__name__])[0]
    return TaskError(f"{path} is not {kind} ({cause}): fetch it again")


def _file_rows(path: Path) -> Iterable[Row]:
    """Rows of a JSON, JSON lines (gzipped or not) or Parquet file."""
    data = _content(path)
    try:
        if path.suffix == ".parquet":
            import pyarrow
            from pyarrow import parquet

            return parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        whole = text.lstrip().startswith("[")
        rows = json.loads(text) if whole else [json.loads(line) for line in text.split("\n") if line.strip()]
    # pyarrow's and json's are ValueErrors, gzip's OSErrors
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as problem:
        raise _damaged(path, problem) from None
    return [_object(path, row) for row in rows]
