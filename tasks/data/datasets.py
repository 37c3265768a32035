"""Data sets as tasks: prompts in a template or a chat, a fixed held-out split, the right verifier.

A set is one of the table in `tasks.data.hub`, or any JSON, JSON lines or Parquet file. Rows that cannot teach are set
aside and counted (`tasks.data.check`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from tasks.data.check import Checked, checked, known_check, quick
from tasks.data.decontaminate import Dropped, decontaminate
from tasks.data.formats import Item, read_code, read_math
from tasks.data.hub import Source, source
from tasks.data.loading import Loaded, SetAside, digest, load, provenance, read_all
from tasks.errors import TaskError
from tasks.finite import Finite
from tasks.lengths import OwnLengths
from tasks.sandbox.job import Limits
from tasks.stream import problem_key
from tasks.task import TrialProblem, Verifier
from tasks.thinking import THINK_OPEN
from tasks.types import Message, Prompt

MATH_TEMPLATE = "{problem}\n\nPut your final answer within \\boxed{}.\n"
CODE_TEMPLATE = "{problem}\n\nAnswer with one Python code block.\n"


# Reasons and rows that a manifest lists; the counts are complete.
_REASONS_TOLD = 50
_ROWS_TOLD = 200


@dataclass(frozen=True)
class _Contents:
    """A data set as it is used: problems by key, what was left out and why, and where the golds came from."""

    items: dict[str, Item]
    dropped: list[Dropped]
    set_aside: list[SetAside]
    columns: dict[str, int]
    rows: int
    copies: int
    thorough: bool


@dataclass(frozen=True)
class DatasetTask(OwnLengths, Finite):
    """A data set as a task; use `MathDataset` or `CodeDataset`."""

    dataset: str = ""
    """Name of the data set in the table; empty for a file of one's own."""

    file: str = ""
    """File of problems to train on, JSON, JSON lines (gzipped or not) or Parquet, in place of `dataset`."""

    problem: str = ""
    """Column of the problem in `file`; empty finds it, and refuses where two may be it."""

    name: str = ""
    """Task name, in prompt ids, weights and curves; empty is the data set's or the file's."""

    folder: str | None = None
    """Local folder with files named as in the table; None downloads from the hub."""

    revision: str | None = None
    """Commit on the hub; None is the table's, or else the commit of the first use (`tasks.data.loading`)."""

    template: str | None = None
    """Text around `{problem}`, markers of a chat included; None is the plain request for the kind."""

    chat: bool = False
    """Ask as a user's message in the model's own chat template instead of as plain text."""

    system: str = ""
    """System message of the chat; empty is none."""

    thinking: bool = True
    """Completions begin inside `<think>`, and only what follows `</think>` is graded (ScaleRL A.3). False is for models
    that answer at once: the whole completion is graded where nothing closes a thinking."""

    held_out_size: int = 1000
    """Problems that are never trained on (ScaleRL §2: 1,000); of a set for evaluation it is all of them."""

    seed: int = 0
    """Decides the held-out split and the order."""

    against: tuple[str, ...] = ()
    """Data sets whose problems are dropped from this one, such as ("aime_24", "aime_25", "math_500")."""

    longest: int | None = None
    """Most characters of a problem; longer ones are left out. None keeps all."""

    keep: bool = False
    """Train also on rows that cannot teach, such as proofs or tests without an assertion; sets for evaluation keep them
    in any case."""

    thorough: bool | None = None
    """True has the verifier grade every gold, mutants of it and every reference before training, unless the result is
    in the cache folder. None uses the result if it is there (`scalelab data check` leaves it); False reads the rows
    alone."""

    workers: int = 2
    """Completions graded at the same time, by each verifier."""

    kind: ClassVar[Literal["math", "code"]]

    trial: ClassVar[TrialProblem]
    """A problem of the kind with which the verifier can be tried where no data are."""

    def __post_init__(self) -> None:
        if bool(self.dataset) == bool(self.file):
            raise TaskError(f"{type(self).__name__} needs a dataset of the table or a file, one of them")
        for name in (*([self.dataset] if self.dataset else []), *self.against):
            source(name)
        if not self.file and (self.problem or self._gold_column):
            raise TaskError(f"columns are named for a file; {self.dataset} has its own")
        if self._source.kind != self.kind:
            other = "CodeDataset" if self.kind == "math" else "MathDataset"
            raise TaskError(f"dataset {self.dataset} is {self._source.kind}: use {other}")
        if not self.name:
            object.__setattr__(self, "name", self.dataset or Path(self.file).name.partition(".")[0])
        if "/" in self.name:
            raise TaskError(f"name {self.name!r} holds a slash, which ends the name in prompt ids: choose another")
        if min(self.held_out_size, self.workers) < 1:
            raise TaskError(
                f"held_out_size and workers of {self.name} are {self.held_out_size} and {self.workers}: "
                "both must be at least 1"
            )
        self.check_lengths(self.thinking)
        if self.template is not None and "{problem}" not in self.template:
            raise TaskError(f"template of {self.name} has no {{problem}}: say where the problem goes")
        if self.system and not self.chat:
            raise TaskError(f"{self.name} has a system message but is no chat: set chat = True, or leave system out")

    @property
    def has_thinking(self) -> bool:
        """True if completions begin inside `<think>`."""
        return self.thinking

    @property
    def uncounted(self) -> bool:
        """True for a set for evaluation whose problems are not known before it is loaded."""
        return not self.file and self._source.use == "eval" and self._source.problems is None

    @abstractmethod
    def verifier(self) -> Verifier:
        """A new verifier for this kind of problem."""

    def ask(self, problem: str) -> Prompt:
        """The prompt that asks any problem as this task asks its own; there is nothing to grade it against."""
        return self._prompt(problem_key(problem), Item(problem, None))

    def dropped(self) -> list[Dropped]:
        """Problems that were left out because a set in `against` has them."""
        return self._contents.dropped

    def set_aside(self) -> list[SetAside]:
        """Rows that cannot be read, or cannot teach; with `keep`, only those that cannot be read are left out."""
        return self._contents.set_aside

    def describe(self) -> dict[str, Any]:
        """Origin of the problems and their split, for a run's manifest."""
        contents = self._contents
        reasons = Counter(one.reason.partition(":")[0] for one in contents.set_aside)
        return {
            **self._origin(),
            "rows": contents.rows,
            "columns": contents.columns,
            "copies": contents.copies,
            "kept": self.keep,
            "thorough": contents.thorough,
            "set_aside": {
                "count": len(contents.set_aside),
                "reasons": dict(reasons.most_common(_REASONS_TOLD)),
                "rows": [asdict(one) for one in contents.set_aside[:_ROWS_TOLD]],
            },
            "against": [provenance(name, self.folder) for name in self.against],
            "dropped": [asdict(one) for one in self.dropped()],
            "held_out": self.held_out_count,
            "train": self.size,
        }

    @property
    def _source(self) -> Source:
        return self._file_source() if self.file else source(self.dataset)

    @property
    def _gold_column(self) -> str:
        """The column of the gold in `file`; empty finds it."""
        return ""

    def _file_source(self) -> Source:
        path = Path(self.file)
        reader: Callable[..., Item] = read_math if self.kind == "math" else read_code
        return Source("", self.kind, "train", partial(reader, **self._columns()), path.name)

    def _columns(self) -> dict[str, str]:
        return {"problem": self.problem, "answer" if self.kind == "math" else "tests": self._gold_column}

    def _origin(self) -> dict[str, Any]:
        if self.file:
            return {"file": self.file, "sha256": digest(Path(self.file)), "named_columns": self._columns()}
        return provenance(self.dataset, self.folder, self.revision)

    def key(self, item: Item) -> str:
        """The problem's key, in prompt ids; copies have the same."""
        return problem_key(item.problem)

    def loaded(self) -> Loaded:
        """Every row, before anything that can be read is set aside."""
        folder = str(Path(self.file).parent) if self.file else self.folder
        return read_all(self.name, self._source, folder, self.revision)

    def checked(self) -> Checked:
        """The result of `tasks.data.check.thorough` on the rows that can be read, from the cache if it is there."""
        loaded = self.loaded()
        unread = {one.row for one in quick(loaded.items, self.kind)}
        rows = [(number, item) for number, item in loaded.items if number not in unread]
        return checked(rows, self.kind, replace(self, thinking=False).verifier, self._checked_origin())

    def _checked_origin(self) -> dict[str, Any]:
        return {"origin": self._origin()}

    @cached_property
    def _contents(self) -> _Contents:
        """The problems by key, copies as one, without those that cannot teach and those that a set in `against` has."""
        loaded = self.loaded()
        unfit = quick(loaded.items, self.kind)
        known = self.checked() if self.thorough else None
        if self.thorough is None and self._source.use == "train":
            known = known_check(self.kind, self._checked_origin())
        unfit += known.unfit if known is not None else []
        # A set for evaluation stays what others measure on.
        left_out = set() if self.keep or self._source.use == "eval" else {one.row for one in unfit}
        items: dict[str, Item] = {}
        wanted = [item for number, item in loaded.items if number not in left_out and self._wanted(item)]
        for item in wanted:
            items.setdefault(problem_key(item.problem), item)
        copies = len(wanted) - len(items)
        others = [
            (f"{name}/{problem_key(item.problem)}", item.problem)
            for name in self.against
            for item in load(name, self.folder)
        ]
        dropped = decontaminate([(key, item.problem) for key, item in items.items()], others)
        for one in dropped:
            del items[one.id]
        set_aside = sorted([*loaded.set_aside, *unfit], key=lambda one: one.row)
        rows = len(loaded.items) + len(loaded.set_aside)
        return _Contents(items, dropped, set_aside, loaded.columns, rows, copies, known is not None)

    def _wanted(self, item: Item) -> bool:
        return self.longest is None or len(item.problem) <= self.longest

    def _prompts(self) -> dict[str, Prompt]:
        return {key: self._prompt(key, item) for key, item in self._contents.items.items()}

    def _why_empty(self) -> str:
        return "it is for evaluation, or all of it is held out or cannot teach"

    def _held_out_of(self, prompts: int) -> int:
        return prompts if self._source.use == "eval" else self.held_out_size

    def _prompt(self, key: str, item: Item) -> Prompt:
        template = self.template or (MATH_TEMPLATE if self.kind == "math" else CODE_TEMPLATE)
        asked = template.replace("{problem}", item.problem)
        opening = f"{THINK_OPEN}\n" if self.thinking else ""
        chat: tuple[Message, ...] = ()
        if self.chat:
            system = ({"role": "system", "content": self.system},) if self.system else ()
            answer = ({"role": "assistant", "content": opening},) if opening else ()
            chat = (*system, {"role": "user", "content": asked.strip()}, *answer)
        return Prompt(f"{self.name}/{key}", self.name, asked + opening, item.gold, item.meta, chat)


@dataclass(frozen=True)
class MathDataset(DatasetTask):
    """Problems with an answer, such as `polaris_53k`, graded by `tasks.math.verifier`."""

    answer: str = ""
    """Column of the answer in `file`; empty finds it, and refuses where two may be it."""

    kind: ClassVar[Literal["math", "code"]] = "math"

    seconds_per_reward: ClassVar[float] = 0.0005
    """Processor time of a reward, for plans: a wrong answer of MATH, the slower half, on an AMD EPYC."""

    trial: ClassVar[TrialProblem] = TrialProblem("1/2", "so it is \\boxed{0.5}", "so it is \\boxed{0.6}")

    @property
    def _gold_column(self) -> str:
        return self.answer

    def verifier(self) -> Verifier:
        """Strings and numbers at once, the rest by Math-Verify and SymPy."""
        from tasks.math.verifier import MathVerifier

        return MathVerifier(workers=self.workers, whole_if_unclosed=not self.thinking)


@dataclass(frozen=True)
class CodeDataset(DatasetTask):
    """Problems with tests, such as `deepcoder`, graded by `tasks.code.verifier` in the sandbox."""

    tests: str = ""
    """Column of the tests in `file` (forms: `tasks.code.formats.any_tests`); empty finds it."""

    since: str = ""
    """First day `YYYY-MM-DD` that counts, for a dated set (LiveCodeBench)."""

    until: str = "9999-12-31"
    """Last day `YYYY-MM-DD` that counts, for a dated set (LiveCodeBench)."""

    seconds: float = Limits.seconds
    """Time of one program, as in `tasks.sandbox.job.Limits`."""

    memory_mb: int = Limits.memory_mb
    """Address space of one program, in MiB."""

    packages: tuple[str, ...] | None = None
    """Modules beyond the standard library that programs may import; None is what the table says."""

    kind: ClassVar[Literal["math", "code"]] = "code"

    seconds_per_reward: ClassVar[float] = 0.01
    """Processor time of a reward, for plans: a right program of LeetCode with all its tests, on an AMD EPYC."""

    trial: ClassVar[TrialProblem] = TrialProblem(
        {"kind": "stdin", "cases": [{"stdin": "3\n", "stdout": "4\n"}]},
        "```python\nprint(int(input()) + 1)\n```",
        "```python\nprint(int(input()) + 2)\n```",
    )

    @property
    def _gold_column(self) -> str:
        return self.tests

    def verifier(self) -> Verifier:
        """A verifier that runs programs in the sandbox and compares their output outside."""
        from tasks.code.verifier import CodeVerifier
        from tasks.sandbox.job import Limits

        return CodeVerifier(
            workers=self.workers,
            limits=Limits(seconds=self.seconds, memory_mb=self.memory_mb),
            packages=self._source.packages if self.packages is None else self.packages,
            whole_if_unclosed=not self.thinking,
        )

    def _wanted(self, item: Item) -> bool:
        return super()._wanted(item) and self.since <= str(item.meta.get("date", self.since)) <= self.until


def dataset_task(dataset: str, **settings: Any) -> MathDataset | CodeDataset:
    """The task of a data set, of the class for its kind.

    Args:
        dataset: a name in the table of `tasks.data.hub`.
        settings: fields of that class.

    Raises:
        TaskError: there is no such data set, or a setting contradicts it.
    """
    row = source(dataset)
    if row.problems is not None:
        settings.setdefault("held_out_size", row.problems)
    return (MathDataset if row.kind == "math" else CodeDataset)(dataset, **settings)
