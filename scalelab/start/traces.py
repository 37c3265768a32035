"""Examples of supervised fine-tuning: the tasks' own traces, or a public set, tokenized once and kept on disk.

A public set may not fit in memory, so its rows are read one after the other and written as token ids into the cache.
All that can be wrong with it is said then, before a trainer starts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from moe.durable import made_whole
from moe.sequences import TrainingSequence
from scalelab.errors import LabError
from scalelab.rollout.tokenizer import prompt_ids
from scalelab.run.config import Run
from tasks.data.datasets import DatasetTask
from tasks.data.decontaminate import decontaminate
from tasks.data.loading import load
from tasks.data.traces import PublicTraces, Trace, read_trace
from tasks.stream import epoch_position, stable_number
from tasks.task import has_worked_examples, worked_example
from tasks.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_VERSION = 1
"""Version of the preparation; raise it when that changes."""
_ROWS = 1024
"""Rows that are compared and tokenized at a time."""

Ids = tuple[list[int], list[int]]
"""Token ids of a prompt, and of the completion with the token that ends it."""


class Examples(Protocol):
    """The examples of a fine-tuning."""

    def step(self, step: int) -> list[TrainingSequence]:
        """Examples of an optimiser step, counted from 0."""
        ...

    def held_out(self) -> list[TrainingSequence]:
        """Examples that no step has; none if there are none."""
        ...


def sequences(ids: list[Ids]) -> list[TrainingSequence]:
    """Examples that weigh alike per token: the loss of them is the mean over their completions' tokens."""
    total = sum(len(completion) for _, completion in ids)
    return [trace_sequence(prompt, completion, total) for prompt, completion in ids]


def trace_sequence(prompt_ids: list[int], answer_ids: list[int], total: int) -> TrainingSequence:
    """One SFT example: every answer token weighs 1/total, so that a step's loss is the mean over its answer tokens."""
    weights_T = np.zeros(len(prompt_ids) + len(answer_ids), dtype=np.float32)
    weights_T[len(prompt_ids) :] = 1.0 / total
    return TrainingSequence(np.array(prompt_ids + answer_ids, dtype=np.int32), {"weights": weights_T})


def traces(run: Run, first: int, count: int) -> list[tuple[Prompt, str]]:
    """`count` SFT examples from number `first` on, the tasks taken in turn.

    Raises:
        LabError: a task has none.
        TaskError: one is no prompt and completion.
    """
    _demand_worked_examples(run)
    tasks = run.tasks
    return [worked_example(tasks[number % len(tasks)], number // len(tasks)) for number in range(first, first + count)]


def check_worked_examples(run: Run) -> None:
    """Make the first worked example of every task, before anything expensive starts.

    Raises:
        LabError: a task has none.
        TaskError: one is no prompt and completion.
    """
    if run.sft.worked_examples:
        _demand_worked_examples(run)
        for task in run.tasks:
            worked_example(task, 0)


def _demand_worked_examples(run: Run) -> None:
    if without := [task.name for task in run.tasks if not has_worked_examples(task)]:
        raise LabError(
            f"{', '.join(without)}: no worked examples to fine-tune a model on; let the task's problem "
            "return one, or bind SFT.pretrained (and SFT.traces for public ones)"
        )


class TaskTraces:
    """Examples from the tasks themselves, without end."""

    def __init__(self, run: Run, tokenizer: PreTrainedTokenizerFast) -> None:
        self._run, self._tokenizer = run, tokenizer

    def step(self, step: int) -> list[TrainingSequence]:
        """Examples of an optimiser step."""
        count = self._run.sft.traces_per_step
        examples = traces(self._run, step * count, count)
        prompts = [list(prompt_ids(self._tokenizer, prompt)) for prompt, _ in examples]
        answers = self._tokenizer([text for _, text in examples], add_special_tokens=False)["input_ids"]
        end = _end(self._run)
        return sequences([(prompt, [*answer, end]) for prompt, answer in zip(prompts, answers, strict=True)])

    def held_out(self) -> list[TrainingSequence]:
        """No examples: the evaluations of RL measure the model on held-out prompts."""
        return []


@dataclass(frozen=True)
class PreparedTraces:
    """Public traces as token ids in a folder; they are mapped, not read.

    Attributes:
        folder: `tokens` (int32, one trace after the other), `index.npy` and `facts.json`.
        per_step: traces of an optimiser step.
        facts: origin of the traces, and how many were left out for which reason.
        train: numbers of the traces to train on.
        kept_back: numbers of the held-out traces.
        seed: decides the order.
    """

    folder: Path
    per_step: int
    facts: dict[str, Any]
    train: list[int]
    kept_back: list[int]
    seed: int

    def step(self, step: int) -> list[TrainingSequence]:
        """Examples of an optimiser step; every epoch has an order of its own."""
        numbers = range(step * self.per_step, (step + 1) * self.per_step)
        size = len(self.train)
        return sequences(self._ids([self.train[epoch_position(number, size, self.seed)] for number in numbers]))

    def held_out(self) -> list[TrainingSequence]:
        """The held-out traces."""
        return sequences(self._ids(self.kept_back))

    def _ids(self, numbers: list[int]) -> list[Ids]:
        tokens = np.memmap(self.folder / "tokens", dtype=np.int32, mode="r")
        index = np.load(self.folder / "index.npy")
        found = []
        for start, prompt, end in index[numbers, :3].tolist():
            found.append((tokens[start:prompt].tolist(), tokens[prompt:end].tolist()))
        return found


def prepare(
    run: Run, tokenizer: PreTrainedTokenizerFast, cache: Path, say: Callable[[str], None] = lambda _: None
) -> PreparedTraces:
    """Read, check and tokenize the run's public traces, or take them from the cache.

    Args:
        run: the run; it has `SFT.traces`.
        tokenizer: of the model that is fine-tuned.
        cache: folder for prepared traces.
        say: takes lines for people.

    Raises:
        LabError: no task can ask their problems, or too few of them can be used.
        TaskError: the data are not there, or are no traces.
    """
    public = run.sft.public
    assert public is not None
    asking, end = _asking(run), _end(run)
    provenance = public.provenance()
    rule = {
        "version": _VERSION,
        "provenance": provenance,
        "traces": asdict(public) | {"folder": None},
        "longest": run.sft.longest,
        "end": end,
        "tasks": {kind: asdict(task) for kind, task in asking.items()},
        "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "template": str(tokenizer.chat_template),
    }
    key = hashlib.sha256(json.dumps(rule, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = cache / key
    if not folder.exists():
        say(f"SFT: reading the traces of {public.dataset}")
        _write(_Selection(run, public, tokenizer, asking, end), provenance, folder)
    facts = json.loads((folder / "facts.json").read_text())
    train, kept_back = _split(np.load(folder / "index.npy")[:, 3].tolist(), public)
    told = "; ".join(f"{count} {reason}" for reason, count in facts["left_out"].items())
    told = f"{len(train) + len(kept_back)} of {facts['rows']} traces can be used ({told or 'none left out'})"
    if len(train) < run.sft.traces_per_step or len(kept_back) < public.held_out:
        raise LabError(
            f"{public.dataset}: {told}, where a step takes {run.sft.traces_per_step} and {public.held_out} are held "
            "out: raise SFT.longest, lower SFT.traces_per_step or PublicTraces.held_out, or take other traces"
        )
    say(f"SFT: {told}; {facts['mean_tokens']:.0f} tokens each, {len(kept_back)} held out")
    return PreparedTraces(folder, run.sft.traces_per_step, facts | {"key": key}, train, kept_back, public.seed)


def _asking(run: Run) -> dict[str, DatasetTask]:
    """The first task of each kind, which asks problems of that kind in RL.

    Raises:
        LabError: there is none, or one that does not think.
    """
    found: dict[str, DatasetTask] = {}
    for task in run.tasks:
        if isinstance(task, DatasetTask):
            if not task.thinking:
                raise LabError(
                    f"SFT.traces show thinking, and {task.name} answers at once: bind {type(task).__name__}.thinking = "
                    "True, or leave SFT.traces out"
                )
            found.setdefault(task.kind, task)
    if not found:
        names = ", ".join(task.name for task in run.tasks)
        raise LabError(f"SFT.traces needs a task that can ask their problems (MathDataset, CodeDataset), not {names}")
    return found


def _end(run: Run) -> int:
    """The token that ends a completion: the one at which engines stop."""
    end = run.model.to_hf()["eos_token_id"]
    return int(end[0] if isinstance(end, (list, tuple)) else end)


class _Selection:
    """Traces that can be used, as token ids; those left out are counted by their reason."""

    def __init__(
        self,
        run: Run,
        public: PublicTraces,
        tokenizer: PreTrainedTokenizerFast,
        asking: dict[str, DatasetTask],
        end: int,
    ) -> None:
        self._public, self._tokenizer, self._asking, self._end = public, tokenizer, asking, end
        self._longest, self._special = run.sft.longest, set(tokenizer.all_special_ids)
        self.rows, self.left_out = 0, Counter[str]()
        held_out = [prompt for task in asking.values() for prompt in task.held_out(task.held_out_count)]
        self._others = [(prompt.id, prompt.text) for prompt in held_out]
        for name in public.against:
            items = load(name, public.against_folder)
            self._others += [(f"{name}/{number}", item.problem) for number, item in enumerate(items)]

    def __iter__(self) -> Iterator[tuple[Ids, int]]:
        """Token ids of each usable trace, and the number of its problem."""
        stream = islice(self._public.rows(), self._public.count)
        while rows := list(islice(stream, _ROWS)):
            self.rows += len(rows)
            read = [read_trace(row) for row in rows]
            self.left_out.update(f"with {one}" for one in read if isinstance(one, str))
            usable = self._wanted([one for one in read if isinstance(one, Trace)])
            if not usable:
                continue
            texts = self._tokenizer([one.completion for one in usable], add_special_tokens=False)["input_ids"]
            for trace, completion in zip(usable, texts, strict=True):
                prompt = list(prompt_ids(self._tokenizer, self._asking[trace.kind].ask(trace.problem)))
                if not self._special.isdisjoint(completion):
                    self.left_out["with special tokens in the text"] += 1
                elif len(prompt) + len(completion) + 1 > self._longest:
                    self.left_out[f"longer than SFT.longest = {self._longest} tokens"] += 1
                else:
                    yield (prompt, [*completion, self._end]), _number(trace)

    def _wanted(self, found: list[Trace]) -> list[Trace]:
        """Leave out traces of a kind that no task asks, and those with problems of evaluations."""
        asked = [one for one in found if one.kind in self._asking]
        self.left_out.update(f"of {one.kind}, which no task asks" for one in found if one.kind not in self._asking)
        same = {one.id for one in decontaminate([(str(n), one.problem) for n, one in enumerate(asked)], self._others)}
        if same:
            self.left_out["with a problem of an evaluation"] += len(same)
        return [one for number, one in enumerate(asked) if str(number) not in same]


def _number(trace: Trace) -> int:
    return stable_number(" ".join(trace.problem.split()))


def _write(selection: _Selection, provenance: dict[str, Any], folder: Path) -> None:
    """Write the usable traces into a folder."""
    index: list[tuple[int, int, int, int]] = []
    place = 0
    try:
        with made_whole(folder, side_by_side=True) as partial:
            partial.mkdir(parents=True, exist_ok=True)
            with open(partial / "tokens", "wb") as file:
                for (prompt, completion), problem in selection:
                    np.array(prompt + completion, dtype=np.int32).tofile(file)
                    index.append((place, place + len(prompt), place := place + len(prompt) + len(completion), problem))
            np.save(partial / "index.npy", np.array(index, dtype=np.int64).reshape(-1, 4))
            facts = {
                **provenance,
                "rows": selection.rows,
                "left_out": dict(selection.left_out),
                "mean_tokens": place / max(1, len(index)),
            }
            (partial / "facts.json").write_text(json.dumps(facts))
    except OSError:
        if not folder.exists():  # else a run beside this one has prepared the same traces meanwhile
            raise


def _split(problems: list[int], public: PublicTraces) -> tuple[list[int], list[int]]:
    """Numbers of the traces to train on, and of the held-out ones: all of a problem's traces are on one side."""
    of_problem: dict[int, list[int]] = {}
    for number, problem in enumerate(problems):
        of_problem.setdefault(problem, []).append(number)
    held_out: list[int] = []
    train: list[int] = []
    for problem in sorted(of_problem, key=lambda one: stable_number(public.seed, one)):
        (held_out if len(held_out) < public.held_out else train).extend(of_problem[problem])
    return train, held_out[: public.held_out]
