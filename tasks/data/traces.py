"""Public reasoning traces (problem, thinking, answer), to fine-tune a model on before RL.

Rows hold a chat of two turns, in one of two spellings: `messages` of `role` and `content`, or `conversations` of `from`
and `value`. The thinking stands between `<think>` and `</think>`, or between the markers of OpenThoughts-114k.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.data.hub import source
from tasks.data.loading import commit, hub_stream, stream_rows
from tasks.errors import TaskError
from tasks.text import clean
from tasks.thinking import THINK_CLOSE, THINK_OPEN


@dataclass(frozen=True)
class TraceSource:
    """One set of traces.

    Attributes:
        hub: repository on the hub; empty for files of one's own.
        local: folder of its files (Parquet, JSON lines) below a local folder.
        revision: commit on the hub; empty where the commit of the first use counts.
        columns: columns that may hold what is read.
    """

    hub: str
    local: str
    revision: str = ""
    columns: tuple[str, ...] = ("messages", "conversations", "domain")


TRACE_SOURCES: dict[str, TraceSource] = {
    # 94k problems of NuminaMath 1.5, each with a verified solution of DeepSeek R1 in `messages`
    "openr1_math": TraceSource("open-r1/OpenR1-Math-220k", "openr1_math", "075afe03dbbc6e7b8bd35af1e4259957f0beb07d"),
    # 114k solutions of DeepSeek R1 in mathematics, code, science and puzzles
    "openthoughts_114k": TraceSource("open-thoughts/OpenThoughts-114k", "openthoughts_114k"),
    # 1.2M solutions of QwQ-32B, 28 GB, with a `domain`: math, code or science
    "openthoughts_3": TraceSource("open-thoughts/OpenThoughts3-1.2M", "openthoughts_3"),
    # files of one's own, in either spelling
    "own": TraceSource("", "traces"),
}
"""Name → where the traces are. The columns are those of the data sets' cards."""

CODE_REQUESTS = (
    "Generate an executable Python function generated from the given prompt. The function should take stdin as input "
    "and print the output. Simply call the function after the definition.",
)
"""Instructions of OpenThoughts that mark a problem as one of code; the task's own template takes their place."""
MATH_REQUESTS = (
    "Return your final response within \\boxed{}.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
)
"""Instructions of trace sets on how to answer a problem of mathematics."""

_MARKERS = ((THINK_OPEN, THINK_CLOSE), ("<|begin_of_thought|>", "<|end_of_thought|>"))
_SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True)
class Trace:
    """A problem with a worked solution.

    Attributes:
        problem: the problem's text, without instructions on how to answer.
        kind: "math", "code", or what the row's `domain` says.
        thinking: text of the thinking, without markers.
        answer: text behind the thinking.
    """

    problem: str
    kind: str
    thinking: str
    answer: str

    @property
    def completion(self) -> str:
        """The completion that a model learns to write after a prompt that ends with `<think>`."""
        return f"{self.thinking}\n{THINK_CLOSE}\n\n{self.answer}"


@dataclass(frozen=True)
class PublicTraces:
    """A set of reasoning traces to fine-tune a model on before RL (`SFT.traces`)."""

    dataset: str = "openr1_math"
    """Name in the table of `tasks.data.traces`: "openr1_math", "openthoughts_114k", "openthoughts_3", or "own"."""

    folder: str | None = None
    """Local folder; its subfolder of the table's name holds Parquet or JSON lines files, read in the order of their
    names. None reads from the hub."""

    revision: str | None = None
    """Commit on the hub; None is the table's, or else the commit of the first use."""

    count: int | None = None
    """Most rows to read, from the first on; None reads all."""

    against: tuple[str, ...] = ()
    """Data sets whose problems are left out, such as ("aime_24", "aime_25", "math_500"); held-out problems of the run's
    tasks are left out always."""

    against_folder: str | None = None
    """Local folder of the sets in `against`; None downloads them."""

    held_out: int = 256
    """Traces that are not trained on: their loss is reported. All traces of a problem are on one side."""

    seed: int = 0
    """Decides the held-out traces and the order."""

    def __post_init__(self) -> None:
        if self.dataset not in TRACE_SOURCES:
            near = difflib.get_close_matches(self.dataset, TRACE_SOURCES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(TRACE_SOURCES)}"
            raise TaskError(f"unknown traces {self.dataset!r}: {hint}")
        for name in self.against:
            source(name)
        if self.held_out < 1 or (self.count is not None and self.count < 1):
            raise TaskError(f"PublicTraces.held_out is {self.held_out} and count {self.count}: give at least 1")
        if self.folder is None and not self.origin.hub:
            raise TaskError(f"traces {self.dataset!r} are files of your own: bind PublicTraces.folder")

    @property
    def origin(self) -> TraceSource:
        """Repository and local folder of the traces."""
        return TRACE_SOURCES[self.dataset]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows, one after the other; never all of them in memory.

        Raises:
            TaskError: they are not there, or not in a known format.
        """
        if self.folder is None:
            yield from hub_stream(self.dataset, self.origin, self._commit())
        else:
            for path in self._files():
                yield from stream_rows(path, self.origin.columns)

    def provenance(self) -> dict[str, Any]:
        """Origin of the traces, exact enough to get the same again: hub and commit, or files and SHA-256.

        Raises:
            TaskError: there are no files, or the revision is none.
        """
        if self.folder is None:
            return {"dataset": self.dataset, "hub": self.origin.hub, "revision": self._commit()}
        return {"dataset": self.dataset, "files": {str(path): _digest(path) for path in self._files()}}

    def _commit(self) -> str:
        return commit(self.dataset, self.origin, self.revision or self.origin.revision or None)

    def _files(self) -> list[Path]:
        folder = Path(self.folder or "") / self.origin.local
        endings = (".parquet", ".jsonl", ".jsonl.gz", ".json")
        files = sorted(path for path in folder.glob("*") if path.name.endswith(endings))
        if not files:
            raise TaskError(
                f"no traces in {folder}: put Parquet or JSON lines files there, or leave PublicTraces.folder out to "
                "download them"
            )
        return files


def read_trace(row: Mapping[str, Any]) -> Trace | str:
    """Read a row; if it is not usable, return the reason in a few words.

    Raises:
        TaskError: it has neither of the two columns that hold a chat, or these hold something else.
    """
    turns = _turns(row)
    asked = [text for role, text in turns if role == "user"]
    answered = [text for role, text in turns if role == "assistant"]
    if len(asked) != 1 or len(answered) != 1:
        return "not one question with one answer"
    kind, problem = str(row.get("domain") or "math"), asked[0]
    for request in (*CODE_REQUESTS, *MATH_REQUESTS):
        if request in problem:
            kind = "code" if request in CODE_REQUESTS else kind
            problem = problem.replace(request, "")
    parts = _parts(answered[0])
    if parts is None:
        return "no thinking"
    thinking, answer = parts
    if not (problem.strip() and thinking and answer):
        return "an empty problem, thinking or answer"
    return Trace(problem.strip(), kind, thinking, answer)


def _parts(text: str) -> tuple[str, str] | None:
    """Thinking and answer of a completion; None unless both markers are there once, in their order."""
    for opening, closing in _MARKERS:
        if text.count(closing) != 1 or text.count(opening) != 1:
            continue
        before, _, rest = text.partition(opening)
        thinking, closed, answer = rest.partition(closing)
        if before.strip() or not closed:
            return None
        for marker in _SOLUTION:
            answer = answer.replace(marker, "")
        return thinking.strip(), answer.strip()
    return None


def _turns(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of a row's chat."""
    for column, who, what in (("messages", "role", "content"), ("conversations", "from", "value")):
        if column not in row:
            continue
        try:
            return [(_ROLES.get(turn[who], turn[who]), clean(turn[what] or "")) for turn in row[column] or ()]
        except (AttributeError, KeyError, TypeError) as problem:
            raise TaskError(
                f"a trace's {column} are not turns of {who} and {what} ({type(problem).__name__}: {problem}): see "
                "tasks/data/traces.py for the formats"
            ) from None
    raise TaskError(
        f"a trace has the columns {', '.join(sorted(row)) or '(none)'}, where messages or conversations is expected: "
        "is this a set of reasoning traces?"
    )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
