"""Designs: the error of a run against refits, the power against what compare finds, and bad questions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.curves import Curve, Options, analyse, compare, curve, fit_curve
from scalelab.curves.design import SURE, Plan, Quantity, power, run_error, seeds_for, smallest_difference
from scalelab.curves.fitting.joint import FitError
from scalelab.reading.curve import binomial_stderr
from tests.helpers.curve_points import rate


def simulated(plan: Plan, rng: np.random.Generator, seeds: int, shift: float = 0.0, first: int = 0) -> Curve:
    """Runs of a plan with an Ornstein-Uhlenbeck drift, written out independently of the design's own runs."""
    compute = np.arange(plan.evaluations + 1) / plan.evaluations * plan.budget
    total, rates, errors = plan.prompts * plan.samples, [], []
    keep = np.exp(-compute[1] / (0.15 * plan.budget))
    for _ in range(seeds):
        A = plan.A + shift + plan.spread * rng.standard_normal()
        drift = np.zeros(len(compute))
        for at in range(len(compute)):
            before = drift[at - 1] if at else rng.normal(0, plan.drift)
            drift[at] = keep * before + plan.drift * np.sqrt(1 - keep**2) * rng.standard_normal()
        clean = rate(compute, R0=plan.R0, A=A, B=plan.B, C_mid=1.0)
        rates += (rng.binomial(total, np.clip(clean + drift, 0, 1)) / total).tolist()
    errors = [binomial_stderr(one, total) for one in rates]
    names = np.repeat(np.arange(seeds) + first, len(compute)).tolist()
    return curve(np.tile(compute, seeds), rates, errors, seed=names, run=f"from {first}")


@pytest.mark.slow
def test_the_error_of_a_run_is_that_of_refits() -> None:
    plan = Plan(spread=0.0, evaluations=25, prompts=1000, samples=4)
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        found.append(float(fit_curve(simulated(plan, rng, 1)).value(plan.budget)[0]))
    assert run_error(plan).actual == pytest.approx(np.std(found), rel=0.35)
    assert run_error(plan).stated == pytest.approx(np.std(found), rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["log_B", "log_C_mid"])
def test_the_error_of_a_run_in_exponent_and_midpoint_is_that_of_refits(of: Quantity) -> None:
    plan = Plan(spread=0.1, evaluations=25, prompts=1000, samples=4, of=of)
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        parameters = fit_curve(simulated(replace(plan, spread=0.0), rng, 1)).parameters
        found.append(np.log(parameters["B" if of == "log_B" else "C_mid"]))
    assert run_error(plan).actual == pytest.approx(np.std(found), rel=0.35)
    assert run_error(plan).stated == pytest.approx(np.std(found), rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["value", "A", "log_B", "log_C_mid"])
def test_the_error_that_fits_state_is_how_far_their_numbers_lie_apart(of: Quantity) -> None:
    """Some runs tell their A well and others hardly: what seeds that are fitted together state lies between."""
    found = run_error(Plan(spread=0.0, of=of))
    assert found.stated == pytest.approx(found.actual, rel=0.15)


@pytest.mark.slow
def test_runs_that_carry_no_fit_are_counted() -> None:
    assert run_error(Plan(spread=0.0)).unfitted == 0
    poor = Plan(spread=0.0, evaluations=8, prompts=250, samples=1, budget=1.5)
    rng, none = np.random.default_rng(5), 0
    for _ in range(60):
        try:
            fit_curve(simulated(poor, rng, 1))
        except FitError:
            none += 1
    assert none > 0
    assert run_error(poor).unfitted == pytest.approx(none / 60, abs=0.25)


@pytest.mark.slow
def test_the_power_is_what_compare_then_finds() -> None:
    rng, options = np.random.default_rng(2), Options(checks=False, shapes=False)
    for plan, difference in ((Plan(spread=0.0125, seeds=2), 0.045), (Plan(spread=0.0125, seeds=4), 0.012)):
        found = []
        for _ in range(16):
            sources = (simulated(plan, rng, plan.seeds, index * difference, 10 * index) for index in range(2))
            [one] = compare([analyse(item, options) for item in sources])
            better = next(entry for entry in one.entries if entry.run == "from 10")
            found.append(better.beats["from 0"] >= SURE)
        assert power(plan, difference) == pytest.approx(np.mean(found), abs=0.3)


@pytest.mark.slow
def test_seeds_help_and_evaluations_hardly_do() -> None:
    plan = Plan(spread=0.0125, seeds=2)
    assert power(replace(plan, evaluations=75), 0.02) - power(plan, 0.02) < 0.08
    assert power(replace(plan, seeds=6), 0.02) - power(plan, 0.02) > 0.2
    assert power(replace(plan, known=True), 0.02) > power(plan, 0.02)
    least = smallest_difference(plan)
    assert least is not None
    assert power(plan, least) == pytest.approx(0.8, abs=0.01)
    needed = seeds_for(plan, 0.02)
    assert needed is not None
    assert power(replace(plan, seeds=needed), 0.02) >= 0.8 > power(replace(plan, seeds=needed - 1), 0.02)
    assert power(replace(plan, recipes=9), 0.02) < power(plan, 0.02)


@pytest.mark.parametrize("seeds", [1, 2, 4])
@pytest.mark.parametrize("recipes", [2, 9])
def test_recipes_without_a_difference_are_seldom_called_ahead(seeds: int, recipes: int) -> None:
    for spread in (0.0125, 0.03):
        assert power(Plan(spread=spread, seeds=seeds, recipes=recipes), 0.0) <= 0.1


@pytest.mark.slow
def test_a_difference_below_the_margin_is_found_with_a_smaller_margin_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Four seeds that hardly spread find 0.01, yet by the margin of 0.02 the recipes are equal, too."""
    plan, rng, options = Plan(spread=0.003, seeds=4, drift=0.001), np.random.default_rng(3), Options(checks=False)
    assert power(plan, 0.01) > 0.9
    words = {0.02: list[str](), 0.01: list[str]()}
    for _ in range(8):
        pair = [analyse(simulated(plan, rng, 4, index * 0.0108, 10 * index), options) for index in range(2)]
        for margin, said in words.items():
            [one] = compare(pair, margin=margin)
            said.append(one.verdicts["from 10"])
    assert "equal" in words[0.02]
    assert words[0.01].count("better") >= 7
    settings = ["design", "--seed-spread", "0.003", "--drift", "0.001", "--seeds", "4", "--evaluations", "25"]
    assert main([*settings, "--difference", "0.01"]) == 0
    assert "To find less than 0.02, give compare that as --margin" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "--seed-spread", "0.0125"]) == 0
    assert "seeds of each recipe to find it with 80%" in capsys.readouterr().out
    assert main(["design", "--seed-spread", "0.0125", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"][0]["seeds_needed"] == seeds_for(Plan(spread=0.0125), 0.02)
    assert main(["design", "--seed-spread", "0.1", "--of", "C_mid", "--difference", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = Plan(spread=0.1, of="log_C_mid")
    assert found["tasks"][0]["seeds_needed"] == seeds_for(plan, float(np.log(1.2)))
    assert found["tasks"][0]["designs"][-1]["smallest_difference"] == pytest.approx(
        np.expm1(smallest_difference(replace(plan, seeds=8, evaluations=75)) or 0)
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing says how much seeds differ"),
        (["--seed-spread", "-1"], "makes no sense"),
        (["--seed-spread", "0.01", "--difference", "3"], "a difference of 3 makes no sense"),
        (["--seed-spread", "0.01", "--seeds", "0"], "give at least 1"),
        (["--seed-spread", "0.01", "--drift", "-1"], "a drift of -1 makes no sense"),
    ],
)
def test_questions_without_sense_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["design", *argv]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
