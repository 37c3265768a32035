"""Error rates of verdicts by simulation, and the test for parallel tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.curves import Analysis, Options, analyse, compare, curve, parallel
from scalelab.curves import calibrate as calibrate_module
from scalelab.curves.calibrate import SimulatedDesign, _is_wrong, _rates, calibrate, like, planned
from scalelab.curves.comparison import Comparison
from scalelab.curves.design import Plan
from scalelab.curves.fitting.joint import FitError
from scalelab.errors import LabError
from tests.helpers.curve_points import rate, table

COMPUTE = np.arange(13) / 12
DESIGN = SimulatedDesign(
    compute_N=tuple(COMPUTE.tolist()),
    stderr=0.008,
    R0=0.2,
    A=0.6,
    B=1.8,
    C_mid=0.15,
    seeds=2,
    spread=0.004,
    drift=0.0,
    margin=0.03,
    error=0.1,
    recipes=2,
)


@pytest.mark.slow
def test_words_are_counted_and_a_large_difference_is_found() -> None:
    none, large = calibrate([DESIGN], 8, (0.0, 0.15)).rates[""]
    for line in (none, large):
        assert line.better + line.worse + line.equal + line.cannot_tell == pytest.approx(1)
        assert line.pairs == 8
    assert large.better >= 0.8
    assert large.wrong == 0
    assert none.wrong == none.better + none.worse
    assert calibrate([DESIGN], 8, (0.0, 0.15)).rates[""][0] == none


def test_every_word_is_false_at_the_differences_that_it_denies() -> None:
    false = {
        word: [
            difference for difference in (-0.03, -0.02, -0.01, 0, 0.01, 0.02, 0.03) if _is_wrong(word, difference, 0.02)
        ]
        for word in ("better", "worse", "equal", "unstable", "cannot tell")
    }
    assert false == {
        "better": [-0.03, -0.02, -0.01, 0],
        "worse": [0, 0.01, 0.02, 0.03],
        "equal": [-0.03, -0.02, 0.02, 0.03],
        "unstable": [],
        "cannot tell": [],
    }


WORDS = {"better": "better", "worse": "worse", "equal": "equal", "cannot_tell": "cannot tell", "unstable": "unstable"}


@given(st.lists(st.tuples(st.sampled_from(list(WORDS.values())), st.booleans(), st.booleans()), max_size=12))
def test_shares_are_those_of_the_verdicts_and_add_up_to_all(said: list[tuple[str, bool, bool]]) -> None:
    found = _rates(DESIGN, 0.02, said)
    of_word = {name: [one for one, *_ in said].count(word) for name, word in WORDS.items()}
    of_word["cannot_tell"] += of_word.pop("unstable")
    counted = {**of_word, "wrong": sum(one for _, one, _ in said), "holds": sum(one for *_, one in said)}
    assert {name: getattr(found, name) * len(said) for name in counted} == pytest.approx(counted)
    assert (found.difference, found.pairs, found.seeds, found.evaluations) == (0.02, len(said), 2, 13)
    assert (found.spread, found.error) == (DESIGN.spread, DESIGN.error)


def test_a_recipe_that_carries_no_fit_is_left_out_and_a_baseline_takes_its_task_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = calibrate_module._fitted

    def some_fail(setting: SimulatedDesign, run: str, *rest: Any) -> Any:
        if (setting.task, run) in {("math", "1"), ("code", "0")}:
            raise FitError("it carries no fit")
        return fitted(setting, run, *rest)

    monkeypatch.setattr(calibrate_module, "_fitted", some_fail)
    tasks = [replace(DESIGN, task=task, recipes=3, seeds=1) for task in ("math", "code")]
    said = {name: line.pairs for name, [line] in calibrate(tasks, 1, (0.15,)).rates.items()}
    assert said == {"math": 1, "code": 0}


@pytest.mark.slow
def test_a_word_is_wrong_only_where_it_is_false() -> None:
    """At the margin itself, `equal` is wrong and `better` is not."""
    [line] = calibrate([replace(DESIGN, seeds=1)], 6, (DESIGN.margin,)).rates[""]
    assert line.wrong == pytest.approx(line.equal + line.worse)


@pytest.mark.slow
def test_a_family_is_compared_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison has all recipes and tasks; a family counts as wrong if any of its words is."""
    seen: list[list[Comparison]] = []

    def watched(*args: Any, **kwargs: Any) -> list[Comparison]:
        seen.append(compare(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(calibrate_module, "compare", watched)
    tasks = [replace(DESIGN, task=task, recipes=4, margin=0.0001, error=0.49) for task in ("math", "code")]
    found = calibrate(tasks, 6, (0.0, 0.05))
    assert found.families == len(seen) == 4
    assert {(one.task, len(one.entries)) for comparisons in seen for one in comparisons} == {("math", 4), ("code", 4)}
    assert [line.pairs for line in found.rates["math"]] == [6, 6]
    truth = [[(0.0, 0.05)[(family + index) % 2] for index in range(3)] for family in range(4)]
    wrong = [
        any(
            word == "worse" or (word == "better" and not gains[int(run) - 1])
            for one in comparisons
            for run, word in one.verdicts.items()
        )
        for gains, comparisons in zip(truth, seen)
    ]
    assert found.any_wrong == pytest.approx(np.mean(wrong))
    assert f"{found.families} simulated comparisons of 4 recipes on 2 tasks" in found.sentence()


@pytest.mark.slow
def test_a_comparison_without_a_fit_is_not_counted_as_right(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, seen = calibrate_module._fitted, Counter[str]()

    def second_fails(setting: SimulatedDesign, run: str, *rest: Any) -> Any:
        seen[run] += 1
        if run == "0" and seen[run] == 2:
            raise FitError("the baseline carries no fit")
        return fitted(setting, run, *rest)

    monkeypatch.setattr(calibrate_module, "_fitted", second_fails)
    found = calibrate([DESIGN], 3, (0.0,))
    assert (found.families, found.rates[""][0].pairs) == (2, 2)


@pytest.mark.slow
def test_a_sweep_that_is_only_planned_is_simulated_with_its_own_evaluations() -> None:
    plan = Plan(spread=0.004, seeds=2, evaluations=12, prompts=200, samples=8, early_samples=2, recipes=3)
    setting = planned(plan, "math", 0.02, 0.1)
    assert isinstance(setting.stderr, tuple)
    assert len(setting.compute_N) == len(setting.stderr) == 13
    assert setting.stderr[3] > 1.9 * setting.stderr[-1], "a quarter of the samples"
    assert (setting.recipes, setting.known_spread, setting.drift) == (3, None, plan.drift)
    assert planned(replace(plan, known=True), "", 0.02, 0.1).known_spread == 0.004
    assert calibrate([setting], 2, (0.0,)).families == 1


def test_the_design_is_that_of_the_comparison() -> None:
    points = [
        rate(COMPUTE, A=A) + 0.005 * np.random.default_rng(at).standard_normal(13) for at, A in enumerate((0.7, 0.68))
    ]
    fits = [
        analyse(curve(COMPUTE, p, np.full(13, 0.005), run=run), Options(checks=False)) for p, run in zip(points, "ab")
    ]
    [one] = compare(fits, margin=0.05, error=0.2)
    found = like(one)
    assert (found.margin, found.error, found.seeds, len(found.compute_N)) == (0.05, 0.2, 1, 13)
    assert one.reference.analysis.params["A"] == found.A
    assert found.stderr == pytest.approx(0.005)
    assert (found.known_spread, like(one, 0.004).known_spread) == (None, 0.004)


@pytest.mark.slow
def test_error_rates_are_those_of_comparisons_that_know_what_this_one_knows() -> None:
    """A difference of four standard deviations of the seeds is found where the spread is told, and hardly without."""
    one_seed = replace(DESIGN, seeds=1, spread=0.004)
    settings = (replace(one_seed, known_spread=known) for known in (None, 0.004))
    [blind], [told] = (calibrate([setting], 8, (0.04,)).rates[""] for setting in settings)
    assert told.better > blind.better


@pytest.mark.slow
def test_the_command_prints_the_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), n=8, seed=seed) for seed, name in enumerate("xy")]
    assert main(["compare", *sources, "--calibrate", "2"]) == 1
    assert "give at least 10" in capsys.readouterr().err
    assert main(["compare", *sources, "--calibrate", "10"]) == 0
    out = capsys.readouterr().out
    assert "10 simulated verdicts for each difference, 1 seed of each, 9 evaluations" in out
    assert "true difference" in out
    row = next(line for line in out.splitlines() if line.strip().startswith("+0.000"))
    assert row.count(" of 10") == 6, "ten verdicts carry no percentages"
    assert "%" not in row
    assert "Of 30 simulated comparisons of 2 recipes, whose words hold together, " in " ".join(out.split())
    sources = [
        table(tmp_path / f"{name}2.csv", tasks=("math", "code"), n=8, seed=seed) for seed, name in enumerate("xy")
    ]
    assert main(["compare", *sources, "--calibrate", "10"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Of 30 simulated comparisons of 2 recipes on 2 tasks, whose words hold together, " in out


def test_without_two_curves_of_a_task_there_are_no_words_to_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = table(tmp_path / "x.csv", tasks=("math",), n=8, seed=0)
    other = table(tmp_path / "y.csv", tasks=("code",), n=8, seed=1)
    assert main(["compare", one, other, "--calibrate", "10"]) == 1
    assert "no task has two curves with fits" in capsys.readouterr().err


@pytest.mark.slow
def test_design_prints_the_words_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["design", "--seed-spread", "0.004", "--seeds", "2", "--evaluations", "12", "--recipes", "3"]
    assert main([*asked, "--calibrate", "9"]) == 1
    assert "give at least 10" in capsys.readouterr().err
    assert main([*asked, "--calibrate", "--of", "A"]) == 1
    assert "leave --of out" in capsys.readouterr().err
    assert main([*asked, "--calibrate", "10"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "10 simulated verdicts for each difference" in out
    assert "Of 15 simulated comparisons of 3 recipes, whose words hold together, " in out


def tasks(first: float, second: float, noise: float) -> list[Analysis]:
    """Two tasks of one run with these exponents."""
    compute, found = np.arange(41) / 40, []
    for at, (name, B) in enumerate((("math", first), ("code", second))):
        points = rate(compute, B=B, C_mid=0.1) + noise * np.random.default_rng(at).standard_normal(41)
        item = curve(compute, np.clip(points, 0, 1), np.full(41, noise), run="r", task=name)
        found.append(analyse(item, Options(checks=False, shapes=False)))
    return found


@pytest.mark.parametrize(
    ("first", "second", "noise", "word"),
    [(1.8, 1.8, 0.003, "parallel"), (2.6, 1.1, 0.003, "not parallel"), (1.8, 1.4, 0.02, "cannot tell")],
)
def test_tasks_are_parallel_not_parallel_or_cannot_be_told(
    first: float, second: float, noise: float, word: str
) -> None:
    [found] = parallel(tasks(first, second, noise))
    assert found.verdict == word
    low, high = found.B_interval
    assert low <= first / second <= high
    assert found.C_mid_interval[0] <= 1 <= found.C_mid_interval[1]


def test_a_ratio_that_nothing_tells_has_two_digits_and_no_0() -> None:
    [found] = parallel(tasks(1.8, 1.4, 0.02))
    wide = replace(found, C_mid_ratio=1.1, C_mid_interval=(0.017, 8.04))
    assert wide.text().endswith("of C_mid 1.1 [0.017, 8.0]"), "it was 1 [0, 8]"


def test_the_margin_is_the_readers() -> None:
    pair = tasks(1.8, 1.4, 0.003)
    assert [parallel(pair, margin)[0].verdict for margin in (1.1, 2.0)] == ["not parallel", "parallel"]
    with pytest.raises(LabError, match="a ratio of B above 1"):
        parallel(pair, 1.0)
