"""Try a task before a run does: what it asks, and how its rewards behave on answers of every kind."""

from __future__ import annotations

import copy
import json
import pickle
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from tasks.bounded.pool import CROWDED, BoundedPool
from tasks.errors import TaskError
from tasks.own import Asking
from tasks.rewards import RewardVerifier, is_async
from tasks.task import Task, TrialProblem, Verifier, has_worked_examples, require_task, worked_example
from tasks.thinking import THINK_CLOSE, answer_part
from tasks.types import Prompt, Verdict

HELD_OUT = 20
"""Held-out prompts that are looked at."""
MOST_TIMEOUTS = 3
"""Answers without a reward in time after which no more are tried."""
ODD = {
    "spaces": " \n\t ",
    "20,000 letters": "x" * 20_000,
    "2,000 brackets": "(" * 2_000,
    "a thousand digits": "9" * 1_000,
    "no text": "\x00\ufffe\U0001f642",
    "markup": "</think><answer>{}[]\\boxed{}</answer>",
}
"""Answers that a model gives one day, and that rewards often do not expect."""


@dataclass(frozen=True)
class Finding:
    """One line of the check.

    Attributes:
        what: what was looked at.
        found: what was found.
        ok: False for what would spoil a run.
    """

    what: str
    found: str
    ok: bool = True


@dataclass(frozen=True, eq=False)
class _Case:
    """An answer of some kind to a prompt."""

    kind: str
    prompt: Prompt
    answer: str


def check_task(task: Task, prompts: int = 8, say: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """Try a task.

    Args:
        task: the task; its rewards run in processes of their own, with its time limits.
        prompts: training prompts that are tried.
        say: called with a line about each answer whose reward took too long, as the wait for it may be a minute.

    Raises:
        TaskError: it has no prompts, or is no task.
    """
    require_task(task)
    asked = [task.prompt(number) for number in range(min(prompts, task.size or prompts))]
    findings = [*_prompts(task, asked)]
    cases = list(_cases(task, asked))
    first = _graded(task, cases, say)
    tried = cases[: len(first)]
    again = _graded(task, [*tried, *tried]) if len(first) == len(cases) else None
    findings += _repeated(tried, first, again)
    if isinstance(task, Asking) and hasattr(task, "reward") and not is_async(task):  # type: ignore[arg-type]
        in_time = [case for case, one in zip(tried, first) if one.outcome != "timeout"]
        findings += [_gold(task, in_time)] if in_time else []
    return [*findings, *_rewards(task, tried, first), *_troubles(tried, first), _seconds(task, first)]


def try_verifier(task: Task) -> list[str]:
    """Grade a right and a wrong answer with a task's verifier, and say what is wrong; no data set is read.

    Of a task without a `trial`, the gold of the first prompt and an empty answer are graded. Whether its reward takes
    the gold for an answer is not known, so that only an error, a reward out of time or memory, and an empty answer that
    passes are wrong.

    Raises:
        TaskError: it has no prompts.
    """
    trial: TrialProblem | None = getattr(task, "trial", None)
    if trial is not None:
        asked = Prompt(f"{task.name}/trial", task.name, "", trial.gold)
        cases = {_Case("a right", asked, trial.right): {"passed"}, _Case("a wrong", asked, trial.wrong): {"failed"}}
    else:
        prompt = task.prompt(0)
        gold = prompt.gold if isinstance(prompt.gold, str) else json.dumps(prompt.gold, default=str)
        cases = {_Case("the gold as an", prompt, gold): {"passed", "failed"}, _Case("an empty", prompt, ""): {"failed"}}
    return [
        f"{task.name}: {case.kind} answer is {one.outcome}: {one.detail}"
        for (case, right), one in zip(cases.items(), _graded(task, [*cases]))
        if one.outcome not in right
    ]


def _prompts(task: Task, asked: Sequence[Prompt]) -> Iterator[Finding]:
    """Compare prompts with those of a copy of the task, and with the held-out ones."""
    copied: Task = pickle.loads(pickle.dumps(task))
    same = asked == [copied.prompt(number) for number in range(len(asked))]
    yield Finding("prompts drawn again", "the same" if same else "others: seed all random numbers by `rng`", same)
    held_out = _held_out(task)
    both = {one.id for one in held_out} & {one.id for one in asked}
    size = "without end" if task.size is None else f"{task.size:,} different"
    found = f"{size}; {len(held_out)} held-out ones looked at"
    yield Finding("prompts", f"{found}, {len(both)} of them trained on, too" if both else found, not both)
    if has_worked_examples(task):
        _, text = worked_example(task, 0)
        ends = answer_part(text) if task.has_thinking else text
        said = f"there are: {text[:30]!r}" if ends is not None else "the first closes no thinking with </think>"
        yield Finding("worked examples", said, ends is not None)
    try:
        json.dumps([asdict(one) for one in asked], allow_nan=False)
    except (TypeError, ValueError) as problem:
        yield Finding("golds", f"no JSON: {problem}", False)


def _held_out(task: Task) -> list[Prompt]:
    """Some held-out prompts: of a task that has few, some of these."""
    count = min(HELD_OUT, getattr(task, "held_out_count", HELD_OUT))
    while True:
        try:
            return task.held_out(count)
        except TaskError:
            if count <= 2:  # an evaluation takes two
                raise
            count = max(count // 2, 2)


def _cases(task: Task, asked: Sequence[Prompt]) -> Iterator[_Case]:
    """Perfect, empty, wrong (another prompt's gold) and odd answers; those that may take long come last."""
    for number, prompt in enumerate(asked):
        if (perfect := _perfect(task, number, prompt)) is not None:
            yield _Case("perfect", *perfect)
        yield _Case("empty", prompt, "")
        other = asked[(number + 1) % len(asked)].gold
        yield _Case("wrong", prompt, other if isinstance(other, str) else json.dumps(other, default=str))
    for kind, text in ODD.items():
        yield _Case(kind, asked[0], text)


def _perfect(task: Task, number: int, prompt: Prompt) -> tuple[Prompt, str] | None:
    """A prompt with its right answer: that of a worked example, or the gold where that is a text or a number."""
    if isinstance(prompt.gold, str | int | float) and not isinstance(prompt.gold, bool):
        return prompt, str(prompt.gold)
    if isinstance(task, Asking) and has_worked_examples(task):
        prompt, text = worked_example(task, number)
        return prompt, (answer_part(text, whole_if_unclosed=True) or "")
    return None


def _graded(task: Task, cases: Sequence[_Case], say: Callable[[str], None] = lambda text: None) -> list[Verdict]:
    """Verdicts one after the other in fresh processes; fewer than asked for if too many take too long."""
    before = f"thinking{THINK_CLOSE}" if task.has_thinking else ""
    serial = replace(task, workers=1) if isinstance(task, Asking) else task
    verdicts: list[Verdict] = []
    verifier: Verifier = serial.verifier()
    with closing(verifier):
        for case in cases:
            verdicts += verifier.verify([(case.prompt, before + case.answer)])
            slow = sum(one.outcome == "timeout" for one in verdicts)
            if verdicts[-1].outcome == "timeout":
                taken = f"no reward after {verdicts[-1].seconds:.2g} s"
                say(f"{task.name}, {case.kind}: {taken}; {slow} of at most {MOST_TIMEOUTS} such answers")
            if slow >= MOST_TIMEOUTS:
                break
    return verdicts


def _repeated(cases: Sequence[_Case], first: Sequence[Verdict], again: Sequence[Verdict] | None) -> list[Finding]:
    """Find rewards that depend on chance, or on what was graded before."""
    if again is None:
        return [Finding("rewards given again", "not tried, as too many take too long", False)]
    fresh, later = again[: len(cases)], again[len(cases) :]
    chance = _differences(cases, first, fresh)
    if chance:
        return [Finding("rewards given again", chance[0], False)]
    left = _differences(cases, fresh, later)
    return [
        Finding("rewards given again", "the same"),
        Finding("rewards after others", left[0] if left else "the same: nothing is left behind", not left),
    ]


def _differences(cases: Sequence[_Case], these: Sequence[Verdict], those: Sequence[Verdict]) -> list[str]:
    return [
        f"{case.kind}: {one.reward:.3g}, then {other.reward:.3g}"
        for case, one, other in zip(cases, these, those, strict=True)
        if (one.outcome, one.reward, one.parts) != (other.outcome, other.reward, other.parts)
    ]


def _gold(task: Any, cases: Sequence[_Case]) -> Finding:
    """Find a reward that changes the prompt that it is given."""
    service = replace(RewardVerifier(task)._service(), make=f"{__name__}:watching")
    pool = BoundedPool(service, 1)
    with closing(pool):
        answers = pool.answer([{"prompt": asdict(case.prompt), "answer": case.answer} for case in cases[:12]])
    changed = [case.kind for case, one in zip(cases, answers) if one.status == "done" and one.value]
    said = f"changed by the reward ({changed[0]}): copy it first" if changed else "left as they are"
    return Finding("golds", said, not changed)


def watching(payload: bytes) -> Callable[[Any], bool]:
    """Service of a worker of `tasks.bounded`: (prompt, answer) → whether the task's reward changes the prompt."""
    task: Any = pickle.loads(payload)

    def changes(request: Any) -> bool:
        prompt = Prompt(**request["prompt"])
        before = copy.deepcopy(prompt)
        task.reward(prompt, request["answer"])
        return prompt != before

    return changes


def _rewards(task: Task, cases: Sequence[_Case], verdicts: Sequence[Verdict]) -> Iterator[Finding]:
    """Rewards of each kind of answer, and their parts."""
    of_kind: dict[str, list[Verdict]] = {}
    for case, one in zip(cases, verdicts):
        of_kind.setdefault("odd" if case.kind in ODD else case.kind, []).append(one)
    for kind, ones in of_kind.items():
        passed = sum(one.outcome == "passed" for one in ones)
        mean = statistics.fmean(one.reward for one in ones)
        wrong = passed < len(ones) if kind == "perfect" else passed == len(ones) or (kind != "wrong" and passed > 0)
        yield Finding(f"{kind} answers", f"{passed} of {len(ones)} pass, mean reward {mean:.3g}", not wrong)
    if "perfect" not in of_kind:
        yield Finding("perfect answers", "none known: golds are no texts, and there is no trace(index)")
    parts = {tuple(sorted(one.parts)) for one in verdicts if one.outcome in ("passed", "failed")}
    parts -= {()} if task.has_thinking else set()
    if parts - {()}:
        said = " or ".join(", ".join(names) or "none" for names in sorted(parts))
        yield Finding("parts", said if len(parts) == 1 else f"not always the same: {said}", len(parts) == 1)


def _troubles(cases: Sequence[_Case], verdicts: Sequence[Verdict]) -> Iterator[Finding]:
    """Answers that get no reward."""
    for outcome in ("error", "timeout", "memory"):
        ones = [(case, one) for case, one in zip(cases, verdicts) if one.outcome == outcome]
        if ones:
            case, one = ones[0]
            yield Finding(outcome, f"{len(ones)} of {len(cases)}; {case.kind}: {one.detail}", False)


def _seconds(task: Task, verdicts: Sequence[Verdict]) -> Finding:
    taken = sorted(one.seconds for one in verdicts)
    limit = getattr(task, "reward_seconds", None)
    found = f"median {statistics.median(taken):.2g}, most {taken[-1]:.2g}"
    if limit is None:
        return Finding("seconds a reward", found)
    asleep = f" of a processor, {CROWDED * limit:g} asleep" if taken[-1] > 2 * limit else ""
    return Finding("seconds a reward", f"{found} (limit {limit:g}{asleep})")
