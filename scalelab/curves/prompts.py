"""Comparison prompt by prompt: paired over the prompts, over seeds, with inference to new prompts and new seeds.

A table has a row for each completion: run, prompt, outcome, and perhaps seed, task, compute and answer. The number of
a prompt is the mean of its outcomes, pass@k, or whether the majority of its answers is right. Recipe r has on prompt p
with seed s the number y = μ_r + u_p + v_rp + a_rs + w_rsp: u cancels between recipes, v and w differ from prompt to
prompt, a from seed to seed.

Axes: `_P` prompts, `_S` seeds, `_M` draws.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.arrays import Array
from scalelab.curves.claims import claim_of
from scalelab.curves.fitting.intervals import Interval, equal_tailed
from scalelab.defaults import ERROR, LEVEL, MARGIN
from scalelab.errors import LabError
from scalelab.reading.cells import blank, numbers
from scalelab.reading.columns import ALIASES, names_in
from scalelab.reading.settings import refuse_unknown_tasks
from scalelab.reading.sources import read_table
from scalelab.reading.table import Table, dozen
from tasks.errors import TaskError
from tasks.scores import majority_at_k, mean_at_k, pass_at_k

NAMES = {
    "prompt": ("prompt", "prompt_id", "question_id", "problem_id", "question", "problem"),
    "outcome": ("outcome", "correct", "passed", "is_correct", "score", "reward"),
    **{ours: ALIASES[ours] for ours in ("seed", "task")},
    "run": ("run", "recipe", "model", *ALIASES["run"]),
    "compute": ("compute", "gpu_hours", "core_hours", "step"),
    "answer": ("answer", "extracted_answer", "prediction"),
}
"""Columns by what they hold, the first that is there."""

PASSED = ("passed", "pass", "true", "t", "yes", "y", "correct", "right", "success", "solved", "accepted", "ok")
NOT_PASSED = (
    *("failed", "fail", "false", "f", "no", "n", "incorrect", "wrong", "wrong answer", "failure", "unsolved"),
    *("rejected", "timeout", "time limit exceeded", "memory", "memory limit exceeded"),
    *("runtime error", "compile error", "compilation error"),
)
WORDS = dict.fromkeys(PASSED, 1.0) | dict.fromkeys(NOT_PASSED, 0.0) | {"error": float("nan")}
"""Outcomes in words, those of the lab's verifiers among them; an `error` is the verifier's. Other words are refused."""

DRAWS = 4000


@dataclass(frozen=True)
class PromptDifference:
    """Difference of one recipe to the baseline on one task.

    Attributes:
        task: the task.
        run: the recipe.
        baseline: what it is held against.
        difference: mean over the prompts that both have.
        interval: for new prompts and new seeds.
        verdict: `better`, `worse`, `equal` or `cannot tell`.
        prompts: how many both have, and all completions of which were graded.
        ungraded: how many more both have, a completion of which has the outcome `error`.
        lacking: how many more there are, each of which some seed of either has no completions of.
        seeds: of the recipe and of the baseline.
        parts: standard error that prompts and seeds leave; that of seeds is None where none has two.
        plan: seeds of each recipe, on these prompts, that find the margin with 80 %; None where seeds are not enough
            or their spread is not known.
        votes: completions of a majority; None where the metric is another.
    """

    task: str
    run: str
    baseline: str
    difference: float
    interval: Interval
    verdict: str
    prompts: int
    ungraded: int
    seeds: tuple[int, int]
    parts: tuple[float, float | None]
    margin: float
    plan: int | None
    votes: int | None = None
    lacking: int = 0

    def text(self) -> str:
        """The difference in a sentence."""
        low, high = self.interval
        of_seeds = "no recipe has two seeds, so only these runs are compared" if self.parts[1] is None else ""
        by = of_seeds or f"standard error {self.parts[0]:.4f} by prompts, {self.parts[1]:.4f} by seeds"
        if self.plan is not None:
            by += f"; {self.plan} seeds of each find {self.margin:g} with 80%"
        elif not of_seeds:
            by += f"; more seeds do not find {self.margin:g} on so few prompts"
        by += f"; {self.ungraded} with an error of the verifier left out" if self.ungraded else ""
        by += f"; {self.lacking} that a seed lacks left out" if self.lacking else ""
        by += f"; majorities of {self.votes}" if self.votes else ""
        return (
            f"{self.task or 'all'}: {self.run} less {self.baseline} {self.difference:+.4f} [{low:+.4f}, {high:+.4f}], "
            f"{self.verdict}, for new prompts like these {self.prompts} ({by})"
        )


def compare_prompts(
    sources: Sequence[str | Path],
    metric: str = "mean",
    margin: float = MARGIN,
    error: float = ERROR,
    level: float = LEVEL,
    *,
    tasks: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> tuple[list[PromptDifference], dict[str, str]]:
    """Hold every recipe against the first, prompt by prompt, at the last evaluation of each seed.

    Args:
        sources: tables of completions; a file without a column `run` is a run.
        metric: `mean`, `pass@K` or `majority`.
        margin: difference below which recipes are equal.
        error: probability of a wrong verdict.
        level: probability of intervals.
        tasks: the tasks to compare; empty for all.
        columns: our name of a column, as in `NAMES`, → the tables' name for it.

    Returns:
        The differences, and task → its run for tasks that one run alone has.

    Raises:
        LabError: a table lacks a column, no table has a task, recipes share no prompts, or the metric is none.
    """
    unknown = [ours for ours in columns or {} if ours not in NAMES]
    if unknown:
        raise LabError(f"--column {unknown[0]}=…: no such column; the columns are {', '.join(NAMES)}")
    given: dict[tuple[str, str], dict[str, Given]] = {}
    tables = [_table(Path(path)) for path in sources]
    names = [table.run for table in tables]
    for table in tables:
        own = table.run if names.count(table.run) == 1 else str(table.path)
        for key, seeds in _completions(replace(table, run=own), metric, columns or {}).items():
            given.setdefault(key, {}).update({f"{table.path} {seed}": value for seed, value in seeds.items()})
    refuse_unknown_tasks(tasks, [task for task, _ in given])
    given = {(task, run): seeds for (task, run), seeds in given.items() if not tasks or task in tasks}
    tasks = list(dict.fromkeys(task for task, _ in given))
    found, uncompared, shared = [], {}, error / max(len(given) - len(tasks), 1)  # Bonferroni over all lines
    for task in tasks:
        of_task = {run: seeds for (other, run), seeds in given.items() if other == task}
        votes = _votes(of_task.values()) if metric == "majority" else None
        first, *others = ((run, _rates(seeds, metric, votes)) for run, seeds in of_task.items())
        for run, rates in others:
            one = difference_by_prompt((task, run, first[0]), (rates, first[1]), margin, shared, level)
            found.append(replace(one, votes=votes))
        if not others:
            uncompared[task] = first[0]
    if not found:
        raise LabError("one run only: give completions of two recipes or more, named by a column run or by their files")
    return found, uncompared


def _table(path: Path) -> Table:
    """A table of completions; a run's folder holds one for each evaluation, and is refused by naming the last."""
    if not path.is_dir():
        return read_table(path)
    kept = sorted(path.glob("rollouts/step_*.parquet"))
    such = kept[-1] if kept else "RUN/rollouts/step_000150.parquet"
    raise LabError(f"{path} is a folder; give tables of completions to compare by prompt, such as {such}")


Given = dict[str, list[tuple[float, str | None]]]
"""Prompt → outcome and answer of each of its completions; the outcome is NaN where a verifier failed."""


def _completions(table: Table, metric: str, chosen: Mapping[str, str]) -> dict[tuple[str, str], dict[str, Given]]:
    """(task, run) → seed → its completions at the seed's last evaluation."""
    for ours, theirs in chosen.items():
        if theirs not in table.cells:
            raise LabError(f"{table.path}: no column {theirs!r} for {ours}; it has {dozen(table.columns)}")
    known = names_in(table)
    columns = {ours: next((known[name] for name in names if name in known), None) for ours, names in NAMES.items()}
    columns |= chosen
    for needed in ("prompt", "outcome", *(["answer"] if metric == "majority" else [])):
        if columns[needed] is None:
            raise LabError(f"{table.path}: no column {needed}; it has {dozen(table.columns)}")
    table.refuse_repeated([name for name in columns.values() if name is not None])
    cells: dict[str, Sequence[Any]] = {ours: table.cells[name] for ours, name in columns.items() if name is not None}
    count = len(table.rows)
    outcomes = _outcomes(table, cells["outcome"]).tolist()
    answers = [None if blank(cell) else str(cell) for cell in cells.get("answer", [None] * count)]
    compute_N = numbers(cells["compute"]).value_N if "compute" in cells else np.zeros(count)
    seeds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row in range(count):
        run, seed, task = (str(cells[name][row]) if name in cells else "" for name in ("run", "seed", "task"))
        seeds[task, run or table.run, seed].append(row)
    found: dict[tuple[str, str], dict[str, Given]] = {}
    for (task, run, seed), rows in seeds.items():
        last = np.nanmax(compute_N[rows])
        prompts = found.setdefault((task, run), {}).setdefault(seed, {})
        for row in rows:
            if compute_N[row] == last:
                prompts.setdefault(str(cells["prompt"][row]), []).append((outcomes[row], answers[row]))
    return found


def _graded(own: Sequence[tuple[float, str | None]]) -> bool:
    return not any(math.isnan(outcome) for outcome, _ in own)


def _votes(runs: Iterable[Mapping[str, Given]]) -> int:
    """Completions of a majority: as many as every prompt of every run has, since larger majorities pass more."""
    every = (own for seeds in runs for prompts in seeds.values() for own in prompts.values())
    return min((len(own) for own in every if _graded(own)), default=1)


def _rates(seeds: Mapping[str, Given], metric: str, votes: int | None) -> dict[str, dict[str, float]]:
    """Seed → prompt → the metric; NaN where a verifier failed."""
    found: dict[str, dict[str, float]] = {}
    for seed, prompts in seeds.items():
        for name, own in prompts.items():
            outcomes, answers = zip(*own)
            try:
                value = of_metric(metric, outcomes, answers, votes) if _graded(own) else math.nan
            except TaskError as error:
                raise LabError(f"{seed.rstrip()}, prompt {name[:40]}: {error}") from None
            found.setdefault(seed, {})[name] = value
    return found


def _outcomes(table: Table, cells: Sequence[Any]) -> Array:
    """Outcomes from 0 to 1, or NaN for an error, `[N]`; words count as `WORDS` has them.

    Raises:
        LabError: a word or a number that is no outcome.
    """
    if any(isinstance(cell, str) and cell.strip()[:1].isalpha() for cell in cells):
        words = [str(cell).strip().lower() for cell in cells]
        strange = next((row for row, word in enumerate(words) if word not in WORDS), None)
        if strange is not None:
            raise LabError(
                f"{table.path}, {table.counted} {table.rows[strange]}: an outcome is a word such as passed, correct, "
                f"failed or wrong, or a number from 0 to 1, not {str(cells[strange])[:40]!r}"
            )
        return np.array([WORDS[word] for word in words])
    found = numbers(cells)
    bad = np.flatnonzero(found.blank_N | ~((found.value_N >= 0) & (found.value_N <= 1)))
    if found.wrong or bad.size:
        row = min([*found.wrong, *bad.tolist()])
        shown = "nothing" if blank(cells[row]) else repr(cells[row])
        raise LabError(f"{table.path}, {table.counted} {table.rows[row]}: an outcome is from 0 to 1, not {shown}")
    return found.value_N


def of_metric(metric: str, outcomes: Sequence[float], answers: Sequence[str | None], votes: int | None = None) -> float:
    """One prompt's number, by its completions, as `tasks.scores` has it.

    Args:
        metric: `mean`, `pass@K` or `majority`.
        outcomes: of its completions.
        answers: of its completions.
        votes: completions of a majority; None for all.

    Raises:
        LabError: the metric is none of so many completions.
        TaskError: the outcomes are none that it is made of, as partial credit is none of pass@k.
    """
    count = len(outcomes)
    if metric == "mean":
        return mean_at_k([outcomes]).value
    if metric == "majority":
        return majority_at_k([list(zip(answers, outcomes))], votes or count).value
    _, _, digits = metric.partition("pass@")
    k = int(digits) if digits.isdecimal() else 0
    if not 1 <= k <= count:
        raise LabError(
            f"{metric} of {count} completions of a prompt: use mean, majority, or pass@K with K up to {count}"
        )
    return pass_at_k([outcomes], k).value


def difference_by_prompt(
    names: tuple[str, str, str],
    pair: tuple[Mapping[str, Mapping[str, float]], Mapping[str, Mapping[str, float]]],
    margin: float,
    error: float,
    level: float,
) -> PromptDifference:
    """Hold one recipe against another over the prompts that both have.

    Args:
        names: of the task, the recipe and the baseline.
        pair: of each of the two, seed → prompt → its number, NaN where it is not known.
        margin: difference below which they are equal.
        error: probability of a wrong verdict.
        level: probability of intervals.

    Raises:
        LabError: they share fewer than two prompts.
    """
    every = [set(prompts) for one in pair for prompts in one.values()]
    common = set.intersection(*every)
    lacking = len(set.union(*every)) - len(common)
    ungraded = {prompt for prompt in common for one in pair for own in one.values() if math.isnan(own[prompt])}
    common -= ungraded
    if len(common) < 2:
        left = f" beside {len(ungraded)} with an error of the verifier" if ungraded else ": name prompts alike in both"
        raise LabError(f"{names[1]} and {names[2]} have {len(common)} prompts in common{left}")
    order = sorted(common)
    first_SP, second_SP = (np.array([[own[prompt] for prompt in order] for own in one.values()]) for one in pair)
    difference = float(first_SP.mean() - second_SP.mean())
    of_prompts, of_seeds = variances(first_SP, second_SP)
    plan = None if of_seeds is None else seeds_to_find(margin, _parts(first_SP, second_SP), len(order), error)
    gap_M = difference + errors(first_SP, second_SP)
    claim, wrong = claim_of(gap_M, margin)
    return PromptDifference(
        *names,
        difference=difference,
        interval=equal_tailed(gap_M, level),
        verdict=claim if wrong <= error else "cannot tell",
        prompts=len(order),
        ungraded=len(ungraded),
        seeds=(len(first_SP), len(second_SP)),
        parts=(float(np.sqrt(of_prompts)), None if of_seeds is None else float(np.sqrt(of_seeds))),
        margin=margin,
        plan=plan,
        lacking=lacking,
    )


def variances(first_SP: Array, second_SP: Array) -> tuple[float, float | None]:
    """Variance of the difference of two means by prompts and by seeds.

    The differences of the prompts' means vary by v and w, the means of the seeds by a and w; what w adds to the seeds
    is taken off (crossed effects by moments; Owen 2007, arXiv 0712.1111). The seeds of both recipes are taken to spread
    alike.
    """
    of_prompts = _apart(first_SP, second_SP) / first_SP.shape[1]
    if len(first_SP) + len(second_SP) == 2:
        return of_prompts, None
    return of_prompts, _parts(first_SP, second_SP)[2] * (1 / len(first_SP) + 1 / len(second_SP))


def _apart(first_SP: Array, second_SP: Array) -> float:
    """Variance of the prompts' differences, with two more prompts, one each way (Agresti & Coull 1998).

    Where few prompts make the difference, those that a sample lacks make a narrow interval: of two recipes of which one
    passes 2 % of 133 prompts, the other none, 25 % were "equal" within 0.02 in place of 10. The two lie as far from the
    mean as those prompts that make the most of it, Σd⁴ / Σd², beyond what a normal has, 3 Σd² / n; by 1 if all are
    alike; and by what turns with one completion if a recipe's numbers are all 0 or 1.
    """
    apart_P = first_SP.mean(0) - second_SP.mean(0)
    square_P = (apart_P - apart_P.mean()) ** 2
    steps = [1 / len(each_SP) ** 2 for each_SP in (first_SP, second_SP) if np.isin(each_SP, (0, 1)).all()]
    largest = float((square_P**2).sum() / square_P.sum()) if square_P.sum() > 1e-12 else 1.0
    more = max(max([largest, *steps]) - 3 * float(square_P.mean()), 0.0)
    return float(apart_P.var(ddof=1)) + 2 * more / (len(apart_P) - 1)


def errors(first_SP: Array, second_SP: Array) -> Array:
    """Draws `[M]` of the error of the difference of two means: its fiducial distribution (Hannig 2009).

    That of prompts is Student's t. Given the variance σ² of the seeds' means, their squares are σ² χ², so that σ² is
    those squares over a χ². Degrees of freedom for the sum of both (Satterthwaite 1946) take few seeds that happen to
    lie close for proof that seeds are alike: of two recipes of two seeds each, 16 % were told apart in place of 10.
    """
    prompts, spare = first_SP.shape[1], len(first_SP) + len(second_SP) - 2
    of_prompts_M: Array = np.sqrt(variances(first_SP, second_SP)[0]) * _student(prompts - 1.0)
    if not spare:
        return of_prompts_M
    inner, squares = _squares(first_SP, second_SP)
    chi_M, normal_M = _chi_and_normal(spare)
    between_M = np.maximum(squares / chi_M - inner / prompts, 0)
    of_seeds_M = np.sqrt(between_M * (1 / len(first_SP) + 1 / len(second_SP))) * normal_M
    both_M = of_prompts_M + of_seeds_M
    return np.concatenate([both_M, -both_M])  # either side alike


def _squares(first_SP: Array, second_SP: Array) -> tuple[float, float]:
    """Mean square of w, and sum of squares of the seeds' means about their recipe's; several seeds are needed."""
    prompts, spare = first_SP.shape[1], len(first_SP) + len(second_SP) - 2
    squares, inner = 0.0, 0.0
    for each_SP in (first_SP, second_SP):
        apart_S = each_SP.mean(1) - each_SP.mean()
        left_SP = each_SP - each_SP.mean(0) - apart_S[:, None]
        squares, inner = squares + float((apart_S**2).sum()), inner + float((left_SP**2).sum())
    return inner / (spare * (prompts - 1)), squares


def _parts(first_SP: Array, second_SP: Array) -> tuple[float, float, float]:
    """Variances of v of both recipes together, of w, and of a, of one run each; several seeds are needed."""
    inner, squares = _squares(first_SP, second_SP)
    both = _apart(first_SP, second_SP)
    share, spare = 1 / len(first_SP) + 1 / len(second_SP), len(first_SP) + len(second_SP) - 2
    return max(both - share * inner, 0.0), inner, max(squares / spare - inner / first_SP.shape[1], 0.0)


def seeds_to_find(difference: float, parts: tuple[float, float, float], prompts: int, error: float) -> int | None:
    """Seeds of each recipe that find a difference with 80 %, by the variances of v, w and a; None beyond 100."""
    from scipy.special import stdtrit

    both, inner, between = parts
    for seeds in range(2, 101):
        variance = both / prompts + 2 * inner / (seeds * prompts) + 2 * between / seeds
        needed = float(stdtrit(2 * seeds - 2, 1 - error / 2) + stdtrit(2 * seeds - 2, 0.8))
        if needed * np.sqrt(variance) <= difference:
            return seeds
    return None


@lru_cache(maxsize=64)
def _student(degrees: float) -> Array:
    """Student's t as evenly spaced quantiles `[M]`."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(degrees, (np.arange(DRAWS) + 0.5) / DRAWS), float)


@lru_cache(maxsize=64)
def _chi_and_normal(degrees: int) -> tuple[Array, Array]:
    """A χ² and a normal as evenly spaced quantiles `[M]`, each in an order of its own."""
    from scipy.special import chdtri, ndtri

    rng, share_M = np.random.default_rng(0), (np.arange(DRAWS) + 0.5) / DRAWS
    return chdtri(degrees, rng.permutation(share_M)), ndtri(rng.permutation(share_M))
