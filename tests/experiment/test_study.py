"""The study: its runs are whole and of today's recipes, and its verdicts say what the intervals say."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalelab.curves import analyse, compare, curve
from scalelab.curves.comparison import Difference
from scalelab.experiment import load, resolve
from tests.helpers.curve_points import rate

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "docs" / "study"
COMPUTE = np.arange(23) / 22


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import study_tables.claims
    import study_tables.course
    import study_tables.predictability
    import study_tables.questions
    import study_tables.runs

    yield study_tables
    for name in [name for name in sys.modules if name.partition(".")[0] == "study_tables"]:
        del sys.modules[name]


def runs() -> list[Path]:
    return sorted(path.parent for path in (STUDY / "runs").glob("*/seed_*/manifest.json"))


def test_every_run_of_the_study_is_whole_finished_and_in_the_table() -> None:
    readme = (STUDY / "README.md").read_text()
    for run in runs():
        assert json.loads((run / "manifest.json").read_text())["status"] == "finished"
        assert (run / "evals.jsonl").read_text().endswith("\n")
        assert (run / "config.gin").is_file()
        assert f"| {run.parent.name} | {len(list(run.parent.glob('seed_*')))} |" in readme
    assert f"| all | {len(runs())} |" in readme


def bindings(config: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w./]+) = (.*)$", config, re.M))


def test_the_study_ran_the_configurations_that_the_lab_has_today() -> None:
    for run in runs():
        member, seed = run.relative_to(STUDY / "runs").parts
        recorded = bindings((run / "config.gin").read_text())
        today = bindings(resolve(f"study/{member}", [f"Run.seed={seed.removeprefix('seed_')}"]).config_gin())
        for key in recorded.keys() & today.keys():
            assert recorded[key] == today[key], (run, key)
        assert {"Recipe.loss", "Rates.step_seconds", "SFT.seed"} <= recorded.keys() & today.keys()


def test_runs_that_were_made_twice_are_the_same(tables: Any) -> None:
    assert all(equal for _, equal in tables.runs.repeated(STUDY / "runs"))


def test_a_member_is_unchanged_only_if_all_its_runs_are_the_baselines_to_the_last_byte(
    tables: Any, tmp_path: Path
) -> None:
    for run, text in (("scalerl/seed_0", "a"), ("scalerl/seed_1", "b"), ("same/seed_1", "b"), ("other/seed_1", "a")):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "evals.jsonl").write_text(text)
    found = tables.runs.StudyRuns(tmp_path, (), (), ())
    assert found.unchanged("same", "scalerl")
    assert not any(found.unchanged(name, "scalerl") for name in ("other", "scalerl", "without_runs"))
    (tmp_path / "same" / "seed_2").mkdir()
    (tmp_path / "same" / "seed_2" / "evals.jsonl").write_text("b")
    assert not found.unchanged("same", "scalerl"), "there is no such run of the baseline"


def test_every_member_answers_a_question_and_every_claim_asks_a_member(tables: Any) -> None:
    names = [name.partition("/")[2] for name in load("study")]
    found = tables.runs.StudyRuns(STUDY, tuple(curve([0, 1], [0, 1], run=name) for name in names), (), ())
    asked = {name for question in tables.questions.QUESTIONS for name in tables.questions.members_of(question, found)}
    assert set(names) - asked == {"corner"}
    for claim in tables.claims.CLAIMS:
        [question] = [
            one
            for one in tables.questions.QUESTIONS
            if one.baseline == claim.baseline and claim.member in tables.questions.members_of(one, found)
        ]
        assert question.baseline in names


def difference(low: float, high: float, **others: Any) -> Difference:
    interval = (low, high)
    given = {"A_interval": interval, "log_B_interval": interval, "log_C_mid_interval": interval}
    return Difference(
        **{"median": 0.5 * (low + high), "interval": interval, "probability": 0.5, "verdict": "cannot tell"},
        **{"holds_to_spread": None, "A": 0.0, "A_probability": 0.5, "log_B": 0.0, "log_C_mid": 0.0, "log_reach": 0.0},
        **{"bound": high, "measured": 0.5 * (low + high), "wrong": 0.5, "claim": "better"},
        **{**given, "log_reach_interval": interval, **others},
    )


@pytest.mark.parametrize(
    ("narrow", "wide", "said"),
    [
        ((0.02, 0.04), (0.01, 0.05), "better in pass rate"),
        ((-0.04, -0.02), (-0.05, -0.01), "worse in pass rate"),
        ((0.005, 0.015), (-0.001, 0.02), "equal within 0.015"),
        ((-0.03, 0.01), (-0.05, 0.02), "cannot tell"),
    ],
)
@pytest.mark.parametrize(
    ("reach", "instead"),
    [((-0.1, 0.1), None), ((0.2, 0.5), "worse in compute"), ((-0.5, -0.2), "better in compute")],
)
def test_a_verdict_is_what_the_intervals_allow_of_pass_rates_first_and_compute_then(
    tables: Any, narrow: Any, wide: Any, said: str, reach: Any, instead: str | None
) -> None:
    strict = replace(difference(*wide), log_reach_interval=reach)
    expected = said if instead is None or said.endswith("pass rate") else instead
    assert tables.questions.verdict(difference(*narrow), strict) == expected


@pytest.mark.parametrize(
    ("quantity", "direction", "interval", "said"),
    [
        ("A", 1, (0.01, 0.03), "agrees"),
        ("A", -1, (0.01, 0.03), "disagrees"),
        ("A", 1, (-0.01, 0.03), "cannot tell"),
        ("A", 0, (-0.01, 0.015), "agrees"),
        ("A", 0, (0.03, 0.05), "disagrees"),
        ("A", 0, (0.01, 0.05), "cannot tell"),
        ("compute", 1, (0.2, 0.4), "agrees"),
        ("B", 0, (-0.1, 0.1), "agrees"),
    ],
)
def test_a_claim_is_judged_by_its_direction(tables: Any, quantity, direction, interval, said) -> None:
    claim = tables.claims.Claim("§0", "says", "member", quantity, direction, "none")
    assert tables.claims.judge(claim, difference(*interval)) == said


def made(run: str, seed: int, A: float) -> Any:
    points = rate(COMPUTE, A=A) + 0.005 * np.random.default_rng(seed).standard_normal(len(COMPUTE))
    one = curve(COMPUTE, np.clip(points, 0, 1), np.full(len(COMPUTE), 0.005), run=run, task="math")
    return replace(one, places={"Evaluation.prompts": 256.0, "Evaluation.samples": 4.0})


@pytest.mark.slow
def test_a_sweep_with_one_clear_winner_knows_it_early_and_keeps_it(tables: Any) -> None:
    found = tables.predictability.look([made("low", 1, 0.45), made("high", 2, 0.8), made("middle", 3, 0.55)])
    assert found.best == "high"
    assert found.known_from <= 0.5
    assert found.kept
    assert found.spent < 1


def test_a_forecast_is_made_from_the_first_part_alone_and_judged_by_the_last_evaluation(tables: Any) -> None:
    item = made("run", 4, 0.7)
    found = tables.predictability.forecast_of(item, 0.5)
    same = analyse(item.select(item.compute_N <= 0.5))
    assert found.error == pytest.approx(np.median(same.draws().value([1.0])) - item.pass_rate_N[-1])
    low, high = same.evaluation_interval([1.0], 0.8)
    assert found.inside == (low[0] <= item.pass_rate_N[-1] <= high[0])
    assert tables.predictability.forecast_of(item, 0.05).error is None


@pytest.mark.slow
def test_the_answers_of_a_question_are_the_differences_of_compare(tables: Any) -> None:
    items = [analyse(made("scalerl", 5, 0.7)), analyse(made("batch_64", 6, 0.35))]
    found = tables.runs.StudyRuns(STUDY, tuple(item.fit.curve for item in items), tuple(items), ())
    [question] = [one for one in tables.questions.QUESTIONS if one.name == "batch"]
    [answer] = tables.questions.answers(tables.questions.compared(question, found))
    [one] = compare(items)
    expected = next(entry for entry in one.entries if entry.run == "batch_64").differences["scalerl"]
    assert (answer.member, answer.task, answer.seeds) == ("batch_64", "math", 1)
    assert answer.narrow == expected
    assert answer.wide.interval[0] < answer.narrow.interval[0] < answer.narrow.interval[1] < answer.wide.interval[1]
    assert answer.verdict == "worse in pass rate"


def step(compute: float, entropy: float | None) -> dict[str, Any]:
    tasks = {"math": {"completions": 2, "mean_length": 10.0}, "code": {"completions": 6, "mean_length": 30.0}}
    ratios = {"kl": 0.1, "ratio_clipped": 0.0, "ratio_max": 1.5, "gap_mean": 0.01}
    counts = {"prompts": 4, "prompts_in_loss": 3, "staleness": {"0": 1, "4": 3}, "tasks": tasks}
    return {"compute": compute, "entropy": entropy, **ratios, **counts}


def test_the_course_of_a_run_holds_the_means_of_the_steps_in_each_part_of_its_compute(
    tables: Any, tmp_path: Path
) -> None:
    entropies = [0.9, 0.7, None, 0.4, 0.3]  # a step without sequences has none
    steps = [step(compute, entropy) for compute, entropy in zip((1.0, 2.0, 2.5, 39.0, 40.0), entropies)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    tables.course.write_course(tmp_path / "metrics.jsonl", tmp_path / "course.csv")
    rows = tables.course.read_course(tmp_path / "course.csv")
    assert [(row["compute"], row["steps"], row["entropy"]) for row in rows] == [
        (2, 2, 0.8),
        (4, 1, pytest.approx(float("nan"), nan_ok=True)),
        (40, 2, 0.35),
    ]
    assert {(row["staleness"], row["in_loss"], row["length"]) for row in rows} == {(3.0, 0.75, 25.0)}


def test_unfinished_runs_are_left_out(tables: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, status in (("done", "finished"), ("broken", "failed")):
        folder = tmp_path / "family" / name / "seed_0"
        folder.mkdir(parents=True)
        for kept in tables.runs.KEPT:
            (folder / kept).write_text(json.dumps({"status": status}))
        (folder / "metrics.jsonl").write_text(json.dumps(step(1.0, 0.5)) + "\n")
    tables.runs.take(tmp_path / "family", tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["done"]
    assert "not finished" in capsys.readouterr().out
