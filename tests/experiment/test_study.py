"""The study: its runs are whole and of today's recipes, and its verdicts say what the intervals say."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalelab.curves import analyse, compare, curve
from scalelab.experiment import load, resolve
from tests.helpers.curve_points import rate

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "docs" / "study"
COMPUTE = np.arange(23) / 22


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "bench"))
    import study_tables.axes
    import study_tables.bases
    import study_tables.claims
    import study_tables.course
    import study_tables.ends
    import study_tables.exercised
    import study_tables.falls
    import study_tables.figure
    import study_tables.outcomes
    import study_tables.predictability
    import study_tables.questions
    import study_tables.ranking
    import study_tables.runs
    import study_tables.words

    yield study_tables
    for name in [name for name in sys.modules if name.partition(".")[0] == "study_tables"]:
        del sys.modules[name]


def runs() -> list[Path]:
    return sorted(path.parent for path in (STUDY / "runs").glob("*/seed_*/manifest.json"))


def test_every_run_of_the_first_study_is_whole_and_counted() -> None:
    for run in runs():
        assert json.loads((run / "manifest.json").read_text())["status"] == "finished"
        assert (run / "evals.jsonl").read_text().endswith("\n")
        assert (run / "config.gin").is_file()
    counted = f"{len(runs())} runs of {len({run.parent for run in runs()})} members"
    assert counted in (STUDY / "first.md").read_text()


def section(page: str, name: str) -> str:
    text = (STUDY / page).read_text()
    return text.partition(f"<!-- made by tools/bench/study.py: {name} -->\n\n")[2].partition("\n\n<!-- end -->")[0]


def test_the_committed_sections_are_what_the_committed_points_give(tables: Any) -> None:
    """Compare the sections that take no fit; work a member's end out by hand, too."""
    folder = STUDY / "two" / "runs"
    read = tables.runs.read_members(folder, "hours")
    assert {item.run for item in read} == {path.name for path in folder.iterdir()} - {tables.runs.BENCHMARK}
    found = tables.runs.StudyRuns(folder, tuple(read), (), ())
    for path in folder.glob("*/seed_*/manifest.json"):
        assert json.loads(path.read_text())["status"] == "finished"
    assert tables.ends.benchmark_table(folder / tables.runs.BENCHMARK) == section("tables.md", "benchmark")
    assert section("README.md", "grid").endswith(f"\n\n{tables.falls.grid_table(found)}")
    assert section("README.md", "bases").endswith(f"\n\n{tables.bases.bases_table(found)}")
    assert tables.falls.falls_table(found) == section("tables.md", "falls")
    assert tables.falls.signs_table(found) == section("tables.md", "signs")
    by_hand = []
    for path in sorted((folder / "k8_fast_dapo").glob("seed_*/evals.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        by_hand.append(np.mean([line["pass_rate"] for line in lines if line["task"] == "code"][-4:]))
    assert tables.ends.ends(found.curve("k8_fast_dapo", "code")) == pytest.approx(by_hand)
    [row] = [line for line in section("tables.md", "ends").splitlines() if "`k8_fast_dapo`" in line]
    assert f" | {np.mean(by_hand):.3f} | " in row


def test_the_page_of_the_study_is_no_longer_than_a_reader_bears() -> None:
    prose = re.sub(r"<!-- made by .*?<!-- end", "", (STUDY / "README.md").read_text(), flags=re.DOTALL)
    assert len(prose.split()) <= 3000
    assert len((STUDY / "first.md").read_text().splitlines()) <= 60


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
    for runs in (STUDY / "runs", STUDY / "two" / "runs"):
        found = tables.runs.repeated(runs)
        assert found
        assert all(equal for _, equal in found)


def test_runs_of_the_second_study_are_the_same_on_processors_of_two_makers() -> None:
    again = sorted((STUDY / "two" / "again").glob("*/seed_*/manifest.json"))
    assert len(again) >= 2
    for path in again:
        first = STUDY / "two" / "runs" / path.relative_to(STUDY / "two" / "again")
        processors = [json.loads(one.read_text())["hardware"]["processor"] for one in (path, first)]
        assert [name.partition(" ")[0] for name in processors] == ["Intel(R)", "AMD"]


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


def test_every_member_answers_a_question(tables: Any) -> None:
    names = [name.partition("/")[2] for name in load("study_two")]
    found = tables.runs.StudyRuns(STUDY, tuple(curve([0, 1], [0, 1], run=name) for name in names), (), ())
    asked = {name for question in tables.questions.QUESTIONS for name in tables.questions.members_of(question, found)}
    assert set(names) - {tables.runs.BENCHMARK} == asked - {tables.runs.FIRST + tables.runs.BASELINE}


def test_a_change_is_held_against_scalerl_from_the_same_base_model(tables: Any, tmp_path: Path) -> None:
    ends = {"prompts_1024": 0.5, "base_1_scalerl": 0.6, "base_2_scalerl": 0.4}
    ends |= {"many_magistral": 0.51, "base_1_magistral": 0.64, "base_2_magistral": 0.41, "base_2_minimax_m1": 0.7}
    curves = tuple(
        replace(curve(COMPUTE, np.full(len(COMPUTE), end), run=run), seeds=("0",)) for run, end in ends.items()
    )
    found = tables.bases.bases_table(tables.runs.StudyRuns(tmp_path, curves, (), ())).splitlines()
    half = 1.8856 * np.std([0.01, 0.04, 0.01], ddof=1) / np.sqrt(3)  # Student's t of two degrees of freedom, at 0.9
    low, high = f"{0.02 - half:+.3f}", f"{0.02 + half:+.3f}"
    [own] = [line for line in found if "scalerl" in line]
    assert own.split(" | ")[2:] == ["0.500 (1)", "0.600 (1)", "0.400 (1)", "0.500 |"]
    [told] = [line for line in found if "magistral" in line]
    assert told.split(" | ")[2:] == ["+0.010 (1)", "+0.040 (1)", "+0.010 (1)", f"+0.020 [{low}, {high}] |"]
    [lacking] = [line for line in found if "minimax" in line]
    assert lacking.split(" | ")[2:] == ["–", "–", "+0.300 (1)", "– |"]


def made(run: str, seed: int, A: float) -> Any:
    points = rate(COMPUTE, A=A) + 0.005 * np.random.default_rng(seed).standard_normal(len(COMPUTE))
    one = curve(COMPUTE, np.clip(points, 0, 1), np.full(len(COMPUTE), 0.005), run=run, task="math")
    return replace(one, places={"Evaluation.prompts": 256.0, "Evaluation.samples": 4.0})


def test_a_forecast_sees_the_first_part_alone_and_is_judged_by_the_last_evaluations(tables: Any) -> None:
    item, table = made("run", 4, 0.7), tables.predictability
    found = table.forecast_of(item, 0.5)
    end, measured = float(item.compute_N[-3:].mean()), float(item.pass_rate_N[-3:].mean())
    seen = item.select(item.compute_N <= 0.5)
    assert found.errors["the lab"] == pytest.approx(np.median(analyse(seen).draws().value([end])) - measured)
    assert found.errors["no change"] == pytest.approx(seen.pass_rate_N[-3:].mean() - measured)
    assert table.OTHERS not in found.errors
    beside = table.forecast_of(item, 0.5, others=0.03)
    assert beside.errors[table.OTHERS] == pytest.approx(found.errors["no change"] + 0.03)
    assert table.growth(item, 0.5) == pytest.approx(-found.errors["no change"])
    assert table.forecast_of(item, 0.05) is None


@pytest.mark.parametrize("slope", [0.02, 0.08])
def test_the_line_in_log_compute_goes_through_points_that_lie_on_one(tables: Any, slope: float) -> None:
    compute = np.arange(1, 12.0)
    seen = curve(compute, 0.3 + slope * np.log(compute), np.full(11, 0.01))
    assert tables.predictability.line_in_log(seen, 40.0) == pytest.approx(0.3 + slope * np.log(40.0))


def test_least_squares_finds_the_sigmoid_that_the_points_lie_on(tables: Any) -> None:
    seen = curve(COMPUTE, rate(COMPUTE, A=0.7), np.full(len(COMPUTE), 0.01))
    assert tables.predictability.least_squares(seen, 3.0) == pytest.approx(rate(np.array([3.0]), A=0.7)[0], abs=1e-4)


@pytest.mark.slow
def test_the_answers_of_a_question_are_the_rows_of_compare_on_every_axis(tables: Any, tmp_path: Path) -> None:
    items = [analyse(made("scalerl", 5, 0.7)), analyse(made("batch_64", 6, 0.35))]
    found = tables.runs.StudyRuns(tmp_path, tuple(item.fit.curve for item in items), tuple(items), ())
    bare = replace(found, analyses=(items[0],))
    [question] = [one for one in tables.questions.QUESTIONS if one.members == ("batch_*",)]
    [answer] = tables.questions.answers(question, {"hours": found, "steps": found, "tokens": bare})
    [row] = [row for row in compare(items, baseline="scalerl")[0].rows() if row.run == "batch_64"]
    assert (answer.member, answer.seeds, answer.row) == ("batch_64", 1, row)
    assert answer.measured == pytest.approx(row.measured_difference, abs=0.01)
    assert [*answer.words.values()] == ["worse", "worse", tables.questions.NO_FIT]
    assert answer.stands == "cannot tell"
    assert replace(answer, words={"hours": "worse", "steps": "worse"}).stands == "worse"
    both = tables.questions.all_answers({"hours": found})
    assert [one.all_questions for one in both["batch"]] == ["worse"]
    assert tables.questions.in_words(both["batch"]).startswith("- **math** worse: `batch_64` (-0.")


@pytest.mark.slow
def test_no_member_is_compared_where_its_scalerl_carries_no_fit(tables: Any, tmp_path: Path) -> None:
    curves = [made("scalerl", 5, 0.7), made("batch_64", 6, 0.35), made("batch_256", 7, 0.5)]
    code = [replace(item, task="code") for item in curves]
    items = [analyse(item) for item in (*curves[1:], *code)]
    found = tables.runs.StudyRuns(tmp_path, (*curves, *code), tuple(items), ())
    [question] = [one for one in tables.questions.QUESTIONS if one.members == ("batch_*",)]
    assert [one.task for one in tables.questions.compared(question, found)] == ["code"]
    given = tables.questions.answers(question, {"hours": found})
    assert {one.stands for one in given if one.task == "math"} == {tables.questions.NO_FIT}
    assert "math | 1 | -0." in tables.questions.answers_table(given)


@pytest.mark.parametrize(
    ("expected", "said", "decision"),
    [
        ("worse", ["worse", "cannot tell"], "agrees"),
        ("worse", ["worse", "unstable"], "cannot tell"),
        ("worse", ["worse", "better"], "disagrees"),
        ("worse", ["cannot tell", "equal"], "cannot tell"),
        ("equal", ["equal", "equal"], "agrees"),
        ("equal", ["equal", "cannot tell"], "cannot tell"),
        ("equal", ["equal", "worse"], "disagrees"),
        ("steady", ["steady", "falls"], "disagrees"),
        ("worse", [], "not exercised"),
    ],
)
def test_a_claim_is_decided_by_the_words_that_were_said(
    tables: Any, expected: str, said: list[str], decision: str
) -> None:
    words = {("member", str(task)): word for task, word in enumerate(said)}
    assert tables.claims.decide({"member": expected}, words) == decision


def test_a_member_without_a_fit_says_so_of_a_claim_on_speed_and_one_with_the_baselines_bytes_says_nothing(
    tables: Any, tmp_path: Path
) -> None:
    curves = tuple(made(name, 5, 0.7) for name in ("scalerl", "length_56", "length_96"))
    for name in ("scalerl", "length_56"):
        (tmp_path / name / "seed_0").mkdir(parents=True)
        (tmp_path / name / "seed_0" / "evals.jsonl").write_text(name)
    found = tables.runs.StudyRuns(tmp_path, curves, (), ())
    by_axis = dict.fromkeys(tables.axes.AXES, found)
    [question] = [one for one in tables.questions.QUESTIONS if one.name == "length"]
    [early] = [one for one in tables.claims.CLAIMS if one.kind == "early" and "length_56" in one.expects]
    given = tables.questions.answers(question, by_axis)
    said = tables.claims.Evidence(by_axis, given).words(early)
    assert said == {("length_56", "math"): "no fit", ("length_96", "math"): "no fit"}
    (tmp_path / "length_56" / "seed_0" / "evals.jsonl").write_text("scalerl")
    assert [one.member for one in tables.questions.answers(question, by_axis)] == ["length_96"]


def test_curves_are_parallel_if_they_are_on_every_axis(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs_of(verdict: str) -> Any:
        pair = SimpleNamespace(run="scalerl", tasks=("code", "math"), verdict=verdict)
        return SimpleNamespace(of=lambda members: [pair])

    monkeypatch.setattr(tables.claims, "parallel", lambda pairs: pairs)
    [claim] = [one for one in tables.claims.CLAIMS if one.kind == "parallel"]
    for other, word in (("parallel", "parallel"), ("not parallel", "cannot tell")):
        by_axis = {"hours": runs_of("parallel"), "steps": runs_of(other)}
        assert tables.claims.Evidence(by_axis, []).words(claim) == {("scalerl", "code and math"): word}


def test_every_claim_names_members_of_the_study_and_counters_that_there_are(tables: Any) -> None:
    counters = {"", "fp32 head", *(one.ingredient for one in tables.exercised.COUNTERS)}
    members = {tables.runs.change_of(name.partition("/")[2]) for name in load("study_two")}
    for claim in tables.claims.CLAIMS:
        assert claim.counter in counters
        assert set(claim.expects) <= members
        assert set(claim.expects.values()) <= tables.claims.OPPOSITES.keys()


def test_a_design_takes_more_seeds_where_members_spread_more(tables: Any, tmp_path: Path) -> None:
    def pooled(run: str, ends: list[float]) -> Any:
        one = made(run, 1, 0.7)
        rates = np.concatenate([np.full(len(COMPUTE), end) for end in ends])
        seed_N = np.repeat(np.arange(len(ends)), len(COMPUTE))
        names = tuple(str(seed) for seed in range(len(ends)))
        return replace(
            one,
            compute_N=np.tile(one.compute_N, len(ends)),
            pass_rate_N=rates,
            stderr_N=np.full(len(rates), 0.01),
            seed_N=seed_N,
            seeds=names,
            other_N={},
        )

    curves = (pooled("scalerl", [0.5, 0.6]), pooled("calm", [0.4, 0.5]), pooled("wild", [0.1, 0.6]))
    seeds = tables.claims.Seeds(tables.runs.StudyRuns(tmp_path, curves, (), ()), [])
    assert seeds.spread("calm", "math") == pytest.approx(np.sqrt(0.005))
    assert seeds.spread("wild", "math") == pytest.approx(np.sqrt((0.125 + 0.005) / 2))


def test_the_order_is_known_once_all_pairs_stand_as_in_the_end(tables: Any) -> None:
    ranking = tables.ranking
    assert ranking.order({"a": 0.1, "b": 0.3, "c": 0.2}) == ["b", "c", "a"]
    assert ranking.agreement(["b", "a", "c"], ["b", "c", "a"]) == pytest.approx(2 / 3)
    assert ranking.agreement(["c"], ["b", "c"]) == 0.0


def test_falls_are_counted_in_the_bin_of_their_run_s_divergence(tables: Any, tmp_path: Path) -> None:
    for member, kl in (("calm", 0.0005), ("wild", 0.02)):
        (tmp_path / member / "seed_0").mkdir(parents=True)
        rows = f"compute,steps,kl\n1,10,{kl}\n2,10,{kl}\n"
        (tmp_path / member / "seed_0" / tables.course.COURSE).write_text(rows)
    calm = made("calm", 1, 0.7)
    wild = replace(calm, run="wild", pass_rate_N=np.where(COMPUTE[20] == COMPUTE, 0.2, calm.pass_rate_N))
    runs = [replace(one, seeds=("0",)) for one in (calm, wild)]
    lines = tables.falls.falls_table(tables.runs.StudyRuns(tmp_path, tuple(runs), (), ())).splitlines()
    assert [line.split(" | ")[1:3] for line in (lines[2], lines[-1])] == [["1", "0 of 1"], ["1", "1 of 1"]]


def step(compute: float, entropy: float | None) -> dict[str, Any]:
    whole = {"truncated": 0.0, "interrupted": 0.0}
    tasks = {
        "math": {"completions": 2, "mean_length": 10.0, **whole},
        "code": {"completions": 6, "mean_length": 30.0, **whole},
    }
    ratios = {"kl": 0.1, "ratio_clipped": 0.0, "ratio_max": 1.5, "gap_mean": 0.01}
    counts = {"prompts": 4, "prompts_in_loss": 3, "staleness": {"0": 1, "4": 3}, "tasks": tasks, "sampler": {}}
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


def step_of(number: int, interrupted: float, skipped: int) -> dict[str, Any]:
    one = {"completions": 64, "mean_length": 40.0, "truncated": 0.02, "interrupted": interrupted}
    return {
        **{"compute": float(number), "entropy": 0.1, "kl": 1e-3, "ratio_clipped": 0.0, "ratio_max": 1.5},
        **{"gap_mean": 0.01, "same_version_gap_mean": 1e-3 if number == 1 else None, "staleness": {"0": 3, "4": 1}},
        **{"prompts": 8, "prompts_in_loss": 6, "tasks": {"math": one, "code": {**one, "interrupted": 0.0}}},
        "sampler": {"drawn/math": 10 * number, "retired/math": 1, "skipped/math": skipped, "drawn/code": 0},
    }


def test_the_counters_of_a_run_say_which_ingredients_had_something_to_do(tables: Any, tmp_path: Path) -> None:
    run, taken = tmp_path / "member" / "seed_0", tmp_path / "taken" / "seed_0"
    run.mkdir(parents=True)
    taken.mkdir(parents=True)
    lines = [step_of(number, 0.2, 0 if number < 20 else 50) for number in range(1, 21)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tables.course.write_course(run / "metrics.jsonl", taken / tables.course.COURSE)
    paths = {"member/seed_0": run, "taken/seed_0": taken, "old": STUDY / "runs" / "scalerl" / "seed_0"}
    named = {name: [tables.exercised.rows_of(path)] for name, path in paths.items()}
    header, _, live, kept, old = tables.exercised.exercised_table(named).splitlines()
    cells = [cell.strip() for cell in live.strip("|").split("|")]
    assert cells[0] == "member/seed_0"
    assert cells[1:] == ["0.01 yes", "1 yes", "0.25 yes", "0.2 yes", "0.1 yes", "0.02 no", "0.001 × 1.00"]
    assert kept.replace("taken", "member") == live
    assert old.count("not counted") == 4, "runs of the first study were taken without these counters"
    assert header.count("|") == live.count("|") == old.count("|")


def test_outcomes_keep_how_many_completions_of_every_prompt_passed(tables: Any, tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    draws = np.random.default_rng(5)
    rows = [
        {"task": task, "prompt_id": f"{task}/{prompt}", "outcome": str(draws.choice(["passed", "failed", "timeout"]))}
        for task in ("math", "code")
        for prompt in range(20)
        for _ in range(3)
    ]
    draws.shuffle(rows)
    parquet.write_table(Table.from_pylist(rows), tmp_path / "step_000012.parquet")
    tables.outcomes.write_outcomes(tmp_path, tmp_path / tables.outcomes.OUTCOMES)
    found = tables.outcomes.read_outcomes(tmp_path / tables.outcomes.OUTCOMES)
    assert set(found) == {(12, "math"), (12, "code")}
    for (_, task), counts in found.items():
        names = sorted({row["prompt_id"] for row in rows if row["task"] == task})
        assert counts == [sum(r["prompt_id"] == name and r["outcome"] == "passed" for r in rows) for name in names]


def test_every_picture_stands_in_the_page_and_its_lines_are_members(tables: Any) -> None:
    page, family = (STUDY / "README.md").read_text(), {name.partition("/")[2] for name in load("study_two")}
    for name, picture in tables.figure.PICTURES.items():
        assert f"{name} -->\n\n![{picture.caption}]({name}.png)\n" in page
        assert (STUDY / f"{name}.png").is_file()
        assert set(picture.labels) <= family
