"""Evaluation sets: each has its own cadence, size and metrics, and what cannot be is refused in one line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from scalelab.curves import read_sources
from scalelab.errors import LabError
from scalelab.experiment import load, resolve, resolve_experiment
from scalelab.plan.planner import step_hours
from scalelab.reading import read_with
from scalelab.reading.settings import Reading
from scalelab.rollout.evaluation import Graded, evaluate
from scalelab.run.evaluation_sets import HELD_OUT, Benchmark, HeldOut
from scalelab.run.evaluations import prepared_sets
from scalelab.run.settings import Budget, Evaluation
from scalelab.run.work import Sampling
from scalelab.session.problems import check_overlap, overlap
from scalelab.store.lines import Lines
from tasks.data.hub import SOURCES
from tasks.math.miniature import MathMiniature
from tasks.scores import majority_at_k
from tasks.types import Prompt

DATA = os.environ.get("SCALELAB_DATA", "")
with_data = pytest.mark.skipif(not DATA, reason="set SCALELAB_DATA to a folder with the data sets to run this")
SETS = ["Evaluation.sets=(@HeldOut(), @Benchmark())"]
HARD = [*SETS, "Benchmark.task=@hard/MathMiniature()", "Benchmark.name='hard'", "hard/MathMiniature.min_terms=7"]
HARD = [*HARD, "hard/MathMiniature.max_terms=8"]


@st.composite
def evaluations(draw: Any) -> Evaluation:
    """Rules for a held-out set and a benchmark, each with a cadence of its own or the common one."""
    hours = st.floats(0.05, 9.0, allow_subnormal=False)
    own = st.sampled_from(("common", "steps", "hours", "end"))

    def of(kind: str) -> dict[str, Any]:
        return {
            "common": {},
            "steps": {"every": draw(st.integers(1, 9))},
            "hours": {"every_hours": draw(hours)},
            "end": {"at_end": True},
        }[kind]

    first, second = draw(own.filter(lambda kind: kind != "end")), draw(own)
    sets = (HeldOut(**of(first)), Benchmark(data="aime_24", **of(second)))
    return Evaluation(every=draw(st.integers(1, 9)), every_hours=draw(st.none() | hours), sets=sets)


@given(evaluations(), st.lists(st.floats(0.01, 3.0), min_size=1, max_size=40))
def test_every_set_is_due_when_its_own_rule_or_else_the_common_one_says_so(
    rule: Evaluation, hours: list[float]
) -> None:
    booked = [0.0, *accumulate(hours)]
    for one in rule.sets:
        own = one.every is not None or one.every_hours is not None
        cadence = Evaluation(
            every=(one.every if own else rule.every) or 1, every_hours=one.every_hours if own else rule.every_hours
        )
        for step, (since, now) in enumerate(pairwise(booked), 1):
            expected = not one.at_end and bool(cadence.due(step, since, now))
            assert (one.set_name in rule.due(step, since, now)) == expected
        assert (one.set_name in rule.first) != one.at_end
        assert set(rule.cadence(one).steps(len(hours), None)) <= set(rule.steps(len(hours)))


def graded(prompt: str, outcomes: Sequence[tuple[str, float, str | None]], task: str = "t") -> list[Graded]:
    parts = {"digits": 0.5}
    return [
        Graded(task, prompt, reward, outcome, truncated=False, interrupted=False, tokens=5, detail="", parts=parts,
               answer=answer)
        for outcome, reward, answer in outcomes
    ]  # fmt: skip


def test_metrics_of_a_partial_reward_are_told_apart_from_passes() -> None:
    right, near = ("passed", 1.0, "7"), ("failed", 0.6, "8")
    found = evaluate([*graded("a", [near, near, near, right]), *graded("b", [near] * 4)], {"t": 20})["t"]
    values = {name: score["value"] for name, score in found.metrics.items()}
    assert found.measure == "mean reward"
    assert found.pass_rate == pytest.approx(0.65)
    assert values.pop("passed") == pytest.approx(1 / 8)
    assert values.pop("pass@4") == pytest.approx(1 / 2)
    assert values.pop("pass@2") == pytest.approx((1 / 2 + 0) / 2), "3 of 6 pairs of a's completions hold its pass"
    assert values.pop("majority@4") == pytest.approx(0.6)
    assert values == {"truncated": 0.0, "length": pytest.approx(0.25), "digits": pytest.approx(0.5)}


@given(st.lists(st.sampled_from(["1", "2", None]), min_size=1, max_size=5))
def test_a_majority_of_all_completions_is_the_answer_that_no_other_has_more_of(answers: list[str | None]) -> None:
    rewards = {"1": 1.0, "2": 0.0}
    counts = {answer: answers.count(answer) for answer in rewards}
    best = [answer for answer, count in counts.items() if count == max(counts.values()) and count]
    expected = sum(rewards[answer] for answer in best) / len(best) if best else 0.0
    given_answers = [(answer, rewards.get(answer or "", 0.0)) for answer in answers]
    assert majority_at_k([given_answers], len(answers)).value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ([*SETS], "Benchmark needs data"),
        ([*SETS, "Benchmark.data='aime_23'"], "aime_23"),
        ([*SETS, "Benchmark.task=@MathMiniature()"], "bind Benchmark.name"),
        ([*HARD, "Benchmark.at_end=True", "Benchmark.every=3"], "at_end excludes"),
        (
            [*HARD, "Benchmark.metrics=('pass@64',)"],
            "hard is no metric of 2 completions a prompt: raise Benchmark.samples",
        ),
        ([*HARD, "Benchmark.max_tokens=128"], "max_tokens (128) of evaluation set hard leaves no room"),
        ([*HARD, "Benchmark.temperature=0", "Benchmark.samples=4"], "gives one completion 4 times"),
        (
            [*HARD, "Benchmark.temperature=2.5", "Cluster.device='gpu'"],
            "the temperature of evaluation set hard is 2.5: vLLM on a GPU draws at temperatures from 0.01 to 2",
        ),
        (["Evaluation.sets=(@Benchmark(),)", *HARD[1:], "Benchmark.at_end=True"], "evaluated at the end alone"),
        (["Evaluation.sets=(@HeldOut(), @HeldOut())"], "two HeldOut"),
        (["Evaluation.full_from=1"], "full_from"),
        (
            ["Evaluation.sets=(@HeldOut(),)", "HeldOut.metrics=('pass@2',)", "Evaluation.early_samples=1"],
            "no metric of 1 completions a prompt",
        ),
    ],
)
def test_sets_that_cannot_be_are_refused_in_one_line(settings: list[str], refusal: str) -> None:
    with pytest.raises(LabError) as refused:
        resolve("quickstart", settings)
    assert refusal in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cpu_draws_at_any_temperature() -> None:
    assert resolve("quickstart", [*HARD, "Benchmark.temperature=2.5"]).run.sets[1].temperature == 2.5


def test_a_plan_counts_the_completions_of_every_set() -> None:
    plain, cheap, dear = (
        resolve("h100/scalerl_8b", ["Evaluation.sets=(@HeldOut(),)", *more]).run
        for more in ([], ["HeldOut.every=1000"], ["HeldOut.samples=64"])
    )
    hours = [step_hours(run) for run in (cheap, plain, dear)]
    assert hours == sorted(hours)  # type: ignore[type-var]
    assert [run.sets[0].planned for run in (plain, dear)] == [1000 * 16, 1000 * 64]


@pytest.mark.parametrize(("data", "problems"), [("math_500", 500), ("gsm8k_test", 1319), ("aime_25", 30)])
def test_a_benchmark_of_the_table_is_planned_with_all_its_problems_and_not_with_more(data: str, problems: int) -> None:
    settings = [*SETS, f"Benchmark.data='{data}'"]
    _, benchmark = resolve("h100/scalerl_8b", settings).run.sets
    assert benchmark.planned == problems * benchmark.samples
    with pytest.raises(LabError, match=rf"prompts of benchmark {data} \({problems + 1}\) exceeds held_out_size"):
        resolve("h100/scalerl_8b", [*settings, f"Benchmark.prompts={problems + 1}"])


@pytest.mark.parametrize("name", ["scalerl_8b_long", "scalerl_17bx16", "math_code", "axes", "qwen", "h200"])
def test_the_runs_of_50k_gpu_hours_follow_aime_24_with_every_sample_of_the_paper(name: str) -> None:
    for member, experiment in load(name).items():
        run = resolve_experiment(member, experiment).run
        held_out, aime = run.sets
        assert (held_out.name, aime.name, aime.planned) == ("held_out", "aime_24", 30 * 16), member
        assert aime.tasks[0].has_thinking == run.tasks[0].has_thinking


ROWS = [
    {
        "id": 60 + n,
        "problem": f"Find the number of {n}-tuples of primes below {n}.",
        "answer": f"{n:03d}",
        "year": "2024",
    }
    for n in range(2, 32)
]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=with_data)])
def test_aime_24_from_a_folder_is_a_set_whose_golds_its_verifier_takes(real: bool, tmp_path: Path) -> None:
    folder = Path(DATA)
    if not real:  # the columns of the hub's file
        folder = tmp_path
        (folder / "aime").mkdir()
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / SOURCES["aime_24"].local)
    benchmark = ["Benchmark.data='aime_24'", f"Benchmark.folder={str(folder)!r}", "Benchmark.samples=2"]
    run = resolve("quickstart", [*SETS, *benchmark]).run
    aime = run.sets[1]
    prompts = aime.all_prompts
    assert len(prompts) == 30
    assert all(prompt.text.endswith("<think>\n") and prompt.task == "aime_24" for prompt in prompts)
    [task] = aime.tasks
    with closing(task.verifier()) as verifier:
        right = [(prompt, f"So.</think>\\boxed{{{prompt.gold}}}") for prompt in prompts[:3]]
        found = verifier.verify([*right, (prompts[0], "So.</think>\\boxed{1234}"), (prompts[0], "no end")])
    assert [one.outcome for one in found] == ["passed"] * 3 + ["failed"] * 2


def test_early_evaluations_take_no_more_samples_than_the_last_ones() -> None:
    for samples, early, taken in ((1, 2, 1), (4, 2, 2), (4, None, 4), (2, 5, 2)):
        run = resolve("quickstart", [f"Evaluation.samples={samples}", f"Evaluation.early_samples={early}"]).run
        [one] = run.sets
        assert (one.early_samples, one.samples) == (taken, samples)


def test_early_evaluations_take_fewer_samples_of_the_same_prompts() -> None:
    bound = [*HARD, "Evaluation.samples=6", "Evaluation.early_samples=2", "Evaluation.full_from=0.75"]
    run = resolve("quickstart", [*bound, "Benchmark.samples=3"]).run
    sets = prepared_sets(run, Sampling(None, generations=8, max_tokens=64))  # type: ignore[arg-type]
    plain, hard = sets[HELD_OUT], sets["hard"]
    assert [one.work.generations for one in (plain.at(0.74), plain.at(0.75), hard.at(0.0), hard.at(1.0))] == [
        2,
        6,
        3,
        3,
    ]
    assert plain.at(0.0).prompts == plain.at(1.0).prompts
    parts = [(number + 0.5) / 1000 for number in range(1000)]
    for one, prepared in zip(run.sets, sets.values(), strict=True):
        assert one.planned_mean == pytest.approx(sum(prepared.at(part).expected for part in parts) / 1000)


@given(st.integers(1, 50), st.floats(0.1, 9), st.integers(0, 60), st.floats(0, 9))
def test_the_part_of_a_budget_that_is_spent_is_whole_where_no_step_may_begin(
    steps: int, hours: float, step: int, compute: float
) -> None:
    part = Budget(steps=steps, hours=hours).part(step, compute)
    assert (part >= 1) == (step >= steps or compute >= hours)
    assert Budget(steps=steps).part(step, compute) == step / steps


@dataclass(frozen=True)
class GivesAway(MathMiniature):
    """A task whose held-out problems are those that the miniature trains on."""

    name: str = "same"

    def held_out(self, n: int) -> list[Prompt]:
        trained = [MathMiniature(size=200).prompt(index) for index in range(n)]
        return [replace(one, id=f"same/{number}", task="same") for number, one in enumerate(trained)]


def test_problems_that_are_trained_on_are_counted_and_named_before_anything_starts() -> None:
    plain, said = resolve("quickstart", ["MathMiniature.size=200"]).run, list[str]()

    def with_benchmark(**settings: Any) -> Any:
        benchmark = Benchmark(task=GivesAway(), prompts=4, **settings)
        return replace(plain, evaluation=replace(plain.evaluation, sets=(HeldOut(), benchmark)))

    with pytest.raises(LabError, match=r"trains on 4 of the 4 problems of same \(same/.* as math/.*, …\): leave them"):
        check_overlap(with_benchmark(), print)
    assert len(check_overlap(with_benchmark(allow_overlap=True), said.append)["same"]["trained_on"]) == 4
    assert len(said) == 1
    assert check_overlap(resolve("quickstart", HARD).run, said.append) == {}


def test_sums_that_differ_in_their_signs_alone_are_different_problems() -> None:
    assert overlap([("a", "4+9-7")], [("b", "4-9+7"), ("c", " 4+9-7")]) == [("c", "a")]
    long = "A farmer has twelve cows and buys three more every month for a year"
    assert overlap([("a", f"Today: {long}")], [("b", f"{long}. How many?")]) == [("b", "a")]


def test_metrics_that_a_run_names_are_curves_and_the_others_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "evals.jsonl")
    for step in range(5):
        metrics = {"pass@2": {"value": 0.2 + 0.1 * step, "stderr": 0.01}, "digits": {"value": 0.5, "stderr": 0.1}}
        line = {"step": step, "compute": float(step), "task": "math", "pass_rate": 0.1 + 0.1 * step, "stderr": 0.01}
        lines.write(line | {"curves": ["pass@2"], "metrics": metrics, "measure": "mean reward"})
    found = {item.task: item for item in read_sources([tmp_path])}
    assert {name: item.measure for name, item in found.items()} == {"math": "mean reward", "math pass@2": "pass@2"}
    assert found["math pass@2"].pass_rate_N.tolist() == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])
    [asked] = read_with([tmp_path], Reading(tasks=("math digits",)))
    assert asked.pass_rate_N.tolist() == [0.5] * 5


def test_a_harder_split_shares_no_problem_with_the_tasks_that_are_trained_on() -> None:
    run = resolve("quickstart", HARD).run
    hard = {prompt.text for prompt in run.sets[1].all_prompts}
    assert not hard & {run.tasks[0].prompt(index).text for index in range(MathMiniature().size)}
    assert [one.name for one in run.sets] == [HELD_OUT, "hard"]
    assert all(len(one.all_prompts) * one.samples == one.planned for one in run.sets)
    names = [task.name for one in run.sets for task in one.tasks]
    assert all(a != b for a, b in combinations(names, 2))
