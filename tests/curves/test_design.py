"""Designs: the error of a run against refits, the power against simulated t-tests, and bad questions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_ind

from scalelab.cli import main
from scalelab.curves import curve, fit_curve
from scalelab.curves.design import Plan, difference_error, power, run_error, seeds_for, smallest_difference
from tests.helpers.curve_points import rate


def test_the_error_of_a_run_is_that_of_refits() -> None:
    plan = Plan(spread=0.0, evaluations=25, prompts=1000, samples=4)
    rng, found = np.random.default_rng(0), []
    compute = np.arange(26) / 25 * plan.budget
    clean = rate(compute, R0=0.4, A=0.6, B=1.8, C_mid=1.0)
    for _ in range(60):
        points = rng.binomial(4000, clean) / 4000
        fit = fit_curve(curve(compute, points, np.sqrt(clean * (1 - clean) / 4000)))
        found.append(float(fit.value(plan.budget)[0]))
    assert run_error(plan) == pytest.approx(np.std(found), rel=0.3)


@pytest.mark.parametrize("seeds", [2, 4, 8])
def test_the_power_is_that_of_simulated_t_tests(seeds: int) -> None:
    plan = Plan(spread=0.0125, seeds=seeds)
    sigma = np.hypot(plan.spread, run_error(plan))
    rng = np.random.default_rng(seeds)
    better, other = rng.normal(0.02, sigma, (4000, seeds)), rng.normal(0.0, sigma, (4000, seeds))
    found = ttest_ind(better, other, axis=1, alternative="greater").pvalue <= 0.1
    assert power(plan, 0.02) == pytest.approx(found.mean(), abs=0.03)


def test_seeds_help_and_evaluations_hardly_do() -> None:
    plan = Plan(spread=0.0125, seeds=2)
    assert power(replace(plan, evaluations=75), 0.02) - power(plan, 0.02) < 0.03
    assert power(replace(plan, seeds=6), 0.02) - power(plan, 0.02) > 0.2
    least = smallest_difference(plan)
    assert power(plan, least) == pytest.approx(0.8, abs=1e-6)
    needed = seeds_for(plan, 0.02)
    assert needed is not None
    assert power(replace(plan, seeds=needed), 0.02) >= 0.8 > power(replace(plan, seeds=needed - 1), 0.02)
    assert power(replace(plan, recipes=9), 0.02) < power(plan, 0.02)
    assert difference_error(plan) == pytest.approx(np.hypot(0.0125, run_error(plan)), rel=1e-9)


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "--seed-spread", "0.0125"]) == 0
    assert "seeds of each recipe to find it with 80%" in capsys.readouterr().out
    assert main(["design", "--seed-spread", "0.0125", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"][0]["seeds_needed"] == seeds_for(Plan(spread=0.0125), 0.02)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing says how much seeds differ"),
        (["--seed-spread", "-1"], "makes no sense"),
        (["--seed-spread", "0.01", "--difference", "3"], "a difference of 3 makes no sense"),
        (["--seed-spread", "0.01", "--seeds", "0"], "give at least 1"),
    ],
)
def test_questions_without_sense_are_one_line(argv: list[str], message: str, capsys) -> None:
    assert main(["design", *argv]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
