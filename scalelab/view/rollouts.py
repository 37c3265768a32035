"""The completions of a run: which there are, filtered and paged, one in full, one prompt through the run.

The files are Parquet and come from a run that may be anybody's: sizes are checked before anything is decoded, text
stays dictionary-encoded until a row is asked for, and what cannot be read is named.

Axes: `_R` rows, over all files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.errors import LabError
from scalelab.guarded import inside
from scalelab.parquet import TEXT, take_rows
from scalelab.store.manifest import ROLLOUTS, kind_and_step
from scalelab.view.files import number
from scalelab.view.pieces import Pieces, read_pieces

INDEX = ("task", "prompt_id", "outcome", "reward", "tokens", "truncated", "interrupted")
TOKENS = ("pieces", "token_ids", "logprobs", "trainer_logprobs", "forced", "spans", "versions")
"""Columns of the index that is kept of all rows, and of single tokens."""

MOST_DIFFERING = 20
"""Prompts of the list of those that differ most."""
PREVIEW = 160
LONGEST_TEXT = 200_000
MOST_TOKENS = 50_000
"""Characters in a list, characters and tokens of one completion that are shown."""


@dataclass(frozen=True)
class Filter:
    """Conditions on completions; those that are not given do not filter.

    Attributes:
        kind: `step` for evaluations, `train` for training.
        step: the evaluation's or the optimiser's step.
        task: name of a task.
        outcome: `passed`, `failed`, `timeout`, `memory`, `error`; `not passed` for all but the first; `truncated` and
            `interrupted` for the flags.
        prompt: id of a prompt.
        text: words that the completion, the prompt or the verdict holds, in any case.
    """

    kind: str | None = None
    step: int | None = None
    task: str | None = None
    outcome: str | None = None
    prompt: str | None = None
    text: str | None = None


@dataclass
class _File:
    """One file of completions, and the index of its rows."""

    path: Path
    kind: str
    step: int
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    rows: int = 0
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)


class Rollouts:
    """The completions of one run's folder, read again where files are new.

    Attributes:
        problems: what could not be read, in words.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._files: dict[str, _File | None] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._pieces: Pieces | None = None

    def steps(self) -> list[dict[str, Any]]:
        """The files: kind, step, number of completions, and how many of them have each outcome, by task."""
        return [
            {"kind": file.kind, "step": file.step, "rows": file.rows, "tasks": file.outcomes} for file in self._all()
        ]

    def rows(self, wanted: Filter, offset: int = 0, limit: int = 50) -> dict[str, Any]:
        """The completions that pass a filter, `limit` of them from `offset` on.

        Returns:
            `{"total", "outcomes": {outcome: count}, "rows": [...]}`; a row has an `id`, the index and previews.
        """
        total, outcomes, page = 0, Counter[str](), list[dict[str, Any]]()
        for file in self._all():
            at_R = self._matching(file, wanted)
            outcomes.update(file.columns["outcome"][at_R].tolist())
            first = max(offset - total, 0)
            chosen = at_R[first : first + limit - len(page)] if len(page) < limit else at_R[:0]
            total += len(at_R)
            if len(chosen):
                page += self._previews(file, chosen)
        return {"total": total, "outcomes": dict(outcomes), "rows": page}

    def row(self, id: str) -> dict[str, Any]:
        """One completion in full, with what is known of its tokens.

        Raises:
            LabError: there is no such completion.
        """
        return self.full([id])[0]

    def full(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Completions in full, in the order of their ids; each file is read once.

        Raises:
            LabError: one of them does not exist, or cannot be read.
        """
        places = [self._locate(id) for id in ids]
        found: dict[str, dict[str, Any]] = {}
        for file in {file.path: file for file, _ in places}.values():
            at = sorted({at for other, at in places if other is file})
            columns: dict[str, list[Any]] = take_rows(file.path, at, [*TEXT, *INDEX])
            try:
                columns |= take_rows(file.path, at, TOKENS)
            except LabError as error:
                columns["remark"] = [str(error)] * len(at)
            for place, row in enumerate(at):
                record = {name: values[place] for name, values in columns.items()}
                id = f"{file.path.stem}.{row}"
                found[id] = {"id": id, "kind": file.kind, "step": file.step} | self._with_texts(_bounded(record))
        return [found[id] for id in ids]

    def _with_texts(self, record: dict[str, Any]) -> dict[str, Any]:
        """Add the text of each token (`pieces`) to a completion that has their numbers alone."""
        if "pieces" in record or "token_ids" not in record:
            return record
        try:
            self._pieces = self._pieces or read_pieces(self.folder)
        except LabError as error:
            return {"remark": str(error)} | record
        return record if self._pieces is None else record | {"pieces": self._pieces.texts(record["token_ids"])}

    def prompt(self, task: str, prompt: str) -> list[dict[str, Any]]:
        """The completions of one prompt, from the first evaluation to the last: `{"step", "kind", "rows": [id, …]}`."""
        found = []
        for file in self._all():
            at_R = self._matching(file, Filter(task=task, prompt=prompt))
            if len(at_R):
                rows = [
                    {"id": f"{file.path.stem}.{at}", "outcome": str(file.columns["outcome"][at])}
                    for at in at_R.tolist()[:200]
                ]
                found.append({"kind": file.kind, "step": file.step, "rows": rows})
        return found

    def prompts(self, task: str | None, first: int | None, second: int | None, limit: int = 60) -> dict[str, Any]:
        """Passes of each prompt at every evaluation: those that fell between two of them, those that rose, the rest.

        Args:
            task: name of a task; None for all.
            first: step of an evaluation; None for the first.
            second: step of a later one; None for the last.
            limit: prompts to return.

        Returns:
            `{"steps", "first", "second", "fell", "rose", "rows": [{"task", "prompt_id", "prompt", "passed", "n"}]}`;
            `passed` and `n` have one number for each step.
        """
        files = [file for file in self._all() if file.kind == "step"]
        steps = [file.step for file in files]
        if not files:
            return {"steps": [], "first": None, "second": None, "fell": 0, "rose": 0, "rows": []}
        first = first if first in steps else steps[0]
        second = second if second in steps else steps[-1]
        tally = _tally(files, task)
        at = steps.index(first), steps.index(second)
        change = {key: _share(counts, at[1]) - _share(counts, at[0]) for key, counts in tally.items()}
        order = sorted(tally, key=lambda key: (change[key] >= 0, change[key] == 0, -abs(change[key]), key))
        rows = []
        for key in order[:limit]:
            passed, n = tally[key]
            rows.append({"task": key[0], "prompt_id": key[1], "passed": passed, "n": n})
        self._add_prompts(files[-1], rows)
        return {
            "steps": steps,
            "first": first,
            "second": second,
            "fell": sum(value < 0 for value in change.values()),
            "rose": sum(value > 0 for value in change.values()),
            "rows": rows,
        }

    def last_tally(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Passes and completions of each prompt, by task and prompt, at the last evaluation."""
        files = [file for file in self._all() if file.kind == "step"][-1:]
        return {key: (passed[0], n[0]) for key, (passed, n) in _tally(files, None).items()}

    def add_prompts(self, rows: Sequence[dict[str, Any]]) -> None:
        """Put the beginning of each prompt's text to its row, as the last evaluation has it."""
        self._add_prompts([file for file in self._all() if file.kind == "step"][-1], rows)

    def _add_prompts(self, file: _File, rows: Sequence[dict[str, Any]]) -> None:
        """Put the beginning of each prompt's text to its row."""
        where = {key: at for at, key in reversed(list(enumerate(_keys(file))))}
        at = [where.get((row["task"], row["prompt_id"])) for row in rows]
        known = sorted({place for place in at if place is not None})
        if known:
            shown = dict(zip(known, _previewed(file.path, known, ["prompt"]).get("prompt", [])))
            for row, place in zip(rows, at):
                row["prompt"] = str(shown.get(-1 if place is None else place) or "")[:PREVIEW]

    def _all(self) -> list[_File]:
        """The files of the run, in order of their steps; new and changed ones are read."""
        present = {}
        folder = self.folder / ROLLOUTS
        for path in folder.glob("*.parquet") if folder.is_dir() else ():
            if kind_and_step(f"{ROLLOUTS}/{path.name}"):
                present[path.name] = path
        for gone in self._files.keys() - present.keys():
            del self._files[gone]
        for name, path in present.items():
            try:
                facts = path.stat()
            except OSError:
                continue
            stamp = (facts.st_mtime_ns, facts.st_size)
            if name not in self._files or self._stamps.get(name) != stamp:
                self._stamps[name] = stamp
                self._files[name] = self._open(name)
        found = [file for file in self._files.values() if file is not None]
        return sorted(found, key=lambda file: (file.step, file.kind))

    def _open(self, name: str) -> _File | None:
        found = kind_and_step(f"{ROLLOUTS}/{name}")
        assert found is not None
        try:
            path = inside(self.folder, f"{ROLLOUTS}/{name}")
            if path is None:
                return None
            file = _File(path, *found)
            index = take_rows(path, None, INDEX)
            if "outcome" not in index:
                raise LabError(f"{name} has no column outcome")
            file.rows = len(index["outcome"])
            for column in INDEX:
                values = index.get(column, [None] * file.rows)
                textual = column in ("task", "prompt_id", "outcome")
                file.columns[column] = np.array(
                    [str(value)[:200] if value is not None else "" for value in values] if textual else values,
                    dtype=object,
                )
            file.outcomes = _outcomes(file)
            return file
        except LabError as error:
            self.problems.append(str(error))
            return None

    def _matching(self, file: _File, wanted: Filter) -> np.ndarray:
        """Rows of a file that pass the filter."""
        if (wanted.kind and file.kind != wanted.kind) or (wanted.step is not None and file.step != wanted.step):
            return np.zeros(0, int)
        keep_R = np.ones(file.rows, bool)
        if wanted.task is not None:
            keep_R &= file.columns["task"] == wanted.task
        if wanted.prompt is not None:
            keep_R &= file.columns["prompt_id"] == wanted.prompt
        if wanted.outcome in ("truncated", "interrupted"):
            keep_R &= file.columns[wanted.outcome].astype(bool)
        elif wanted.outcome == "not passed":
            keep_R &= file.columns["outcome"] != "passed"
        elif wanted.outcome is not None:
            keep_R &= file.columns["outcome"] == wanted.outcome
        at_R = np.flatnonzero(keep_R)
        if wanted.text and len(at_R):
            at_R = at_R[_holds(file.path, at_R, wanted.text)]
        return at_R

    def _previews(self, file: _File, at_R: np.ndarray) -> list[dict[str, Any]]:
        """Rows of a list: the index, and the beginnings of the texts."""
        texts = _previewed(file.path, at_R.tolist(), ["prompt", "completion"])
        rows = []
        for place, at in enumerate(at_R.tolist()):
            row: dict[str, Any] = {"id": f"{file.path.stem}.{at}", "kind": file.kind, "step": file.step}
            row |= _bounded({name: file.columns[name][at] for name in INDEX})
            row |= {name: texts[name][place] if name in texts else "" for name in ("prompt", "completion")}
            rows.append(row)
        return rows

    def _locate(self, id: str) -> tuple[_File, int]:
        stem, _, at = id.rpartition(".")
        for file in self._all():
            if file.path.stem == stem and at.isdecimal() and len(at) < 12 and int(at) < file.rows:
                return file, int(at)
        raise LabError(f"there is no completion {id[:80]!r} in {self.folder}")


def differing(first: Sequence[Rollouts], second: Sequence[Rollouts]) -> dict[str, Any]:
    """The prompts whose shares of passes differ most between two sets of runs, each at its last evaluation."""
    sides = []
    for runs in (first, second):
        counts: dict[tuple[str, str], list[int]] = {}
        for run in runs:
            for key, (passed, n) in run.last_tally().items():
                sums = counts.setdefault(key, [0, 0])
                sums[0], sums[1] = sums[0] + passed, sums[1] + n
        sides.append(counts)
    one, two = sides
    common = [key for key in one if key in two]
    common.sort(key=lambda key: (-abs(one[key][0] / one[key][1] - two[key][0] / two[key][1]), key))
    rows = [
        {"task": key[0], "prompt_id": key[1], "first": one[key], "second": two[key]} for key in common[:MOST_DIFFERING]
    ]
    if rows:
        next(run for run in first if run.last_tally()).add_prompts(rows)
    return {"common": len(common), "rows": rows}


def _previewed(path: Path, at: Sequence[int], names: Sequence[str]) -> dict[str, list[str]]:
    """The beginnings of some texts; none where the file is too large to look into."""
    try:
        found = take_rows(path, at, names)
    except LabError:
        return {}
    return {name: [str(value or "")[:PREVIEW] for value in values] for name, values in found.items()}


def _holds(path: Path, at_R: np.ndarray, text: str) -> np.ndarray:
    """Find the rows that hold a text, in any case, in completion, prompt or detail, `bool[len(at_R)]`."""
    found, wanted = np.zeros(len(at_R), bool), text.casefold()
    for values in take_rows(path, at_R.tolist(), ["completion", "prompt", "detail"]).values():
        found |= np.array([value is not None and wanted in str(value).casefold() for value in values], bool)
    return found


def _bounded(record: dict[str, Any]) -> dict[str, Any]:
    """A row as the page gets it: texts and token lists cut at their limits."""
    bounded: dict[str, Any] = {"cut": False}
    for name, value in record.items():
        if name in TOKENS:
            if isinstance(value, list):
                bounded[name] = [_token(item) for item in value[:MOST_TOKENS]]
        elif name in ("reward", "tokens"):
            bounded[name] = number(value)
        elif name in ("truncated", "interrupted"):
            bounded[name] = bool(value)
        elif value is not None:
            bounded[name] = str(value)[:LONGEST_TEXT]
            bounded["cut"] = bounded["cut"] or len(str(value)) > LONGEST_TEXT
    return bounded


def _keys(file: _File) -> Iterator[tuple[str, str]]:
    return zip(file.columns["task"].tolist(), file.columns["prompt_id"].tolist())


def _tally(files: Sequence[_File], task: str | None) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
    """Passes and completions of each prompt, one number for each file."""
    tally: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for index, file in enumerate(files):
        passed = Counter(key for key, outcome in zip(_keys(file), file.columns["outcome"]) if outcome == "passed")
        for key, n in Counter(_keys(file)).items():
            if task is None or key[0] == task:
                counts = tally.setdefault(key, ([0] * len(files), [0] * len(files)))
                counts[0][index], counts[1][index] = passed[key], n
    return tally


def _share(counts: tuple[list[int], list[int]], at: int) -> float:
    passed, n = counts
    return passed[at] / n[at] if n[at] else 0.0


def _outcomes(file: _File) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (task, outcome), count in Counter(zip(file.columns["task"].tolist(), file.columns["outcome"].tolist())).items():
        found.setdefault(task, {})[outcome] = count
    return found


def _token(value: Any) -> Any:
    """One value of a token column: short text, a finite number, a flag, or a span of three whole numbers."""
    if isinstance(value, str):
        return value[:200]
    if isinstance(value, list):
        return [int(part) for part in value[:3] if isinstance(part, int)]
    if isinstance(value, dict):
        return [int(part) for part in list(value.values())[:3] if isinstance(part, int)]
    if isinstance(value, bool):
        return value
    found = number(value)
    return None if found is None else int(found) if isinstance(value, int) else float(f"{found:.4g}")
