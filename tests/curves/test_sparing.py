"""Evaluations planned from the question: their errors against other derivations, and what the search may give."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.curves.design import Plan, Quantity, run_error
from scalelab.curves.sparing import BELIEFS, expected_error, sparing
from tests.helpers.curve_points import rate

ASKED: tuple[Quantity, ...] = ("value", "A", "log_B", "log_C_mid")


def shape(theta: np.ndarray, compute: np.ndarray) -> np.ndarray:
    return rate(compute, R0=theta[0], A=theta[1], B=np.exp(theta[2]), C_mid=np.exp(theta[3]))


@pytest.mark.parametrize("of", ASKED)
def test_the_expected_error_is_that_of_drawn_least_squares_fits(of: Quantity) -> None:
    """Noise and beliefs are drawn, and the linear problem is solved for each draw."""
    plan = Plan(spread=0, evaluations=12, prompts=100, samples=5, early_samples=2, full_from=0.7, R0=0.2, drift=0.01)
    at, step = np.array([plan.R0, plan.A, np.log(plan.B), 0.0]), 1e-5
    compute = np.linspace(0, plan.budget, 13)
    slopes = np.stack([(shape(at + d, compute) - shape(at - d, compute)) / (2 * step) for d in step * np.eye(4)], 1)
    clean, rng = shape(at, compute), np.random.default_rng(0)
    counts = np.array([200] * 9 + [500] * 4)
    apart = np.abs(compute[:, None] - compute) / (0.15 * plan.budget)
    drift = plan.drift**2 * (1 + np.sqrt(3) * apart) * np.exp(-np.sqrt(3) * apart)
    noise = drift + np.diag(clean * (1 - clean) / counts)
    weight = np.linalg.inv(noise)
    beliefs = np.diag(1 / np.array(BELIEFS) ** 2)
    truth = rng.standard_normal((20000, 4)) * BELIEFS
    seen = truth @ slopes.T + rng.multivariate_normal(np.zeros(13), noise, 20000)
    found = np.linalg.solve(slopes.T @ weight @ slopes + beliefs, slopes.T @ weight @ seen.T).T
    asked = slopes[-1] if of == "value" else np.eye(4)[ASKED.index(of) if of != "value" else 0]
    assert expected_error(plan, of) == pytest.approx(float(((found - truth) @ asked).std()), rel=0.03)


@pytest.mark.slow
def test_fits_of_simulated_runs_are_as_exact_with_the_evaluations_that_are_spared() -> None:
    plan = Plan(spread=0, evaluations=20, prompts=256, samples=4, R0=0.3, A=0.9)
    other = sparing(plan)
    assert other.completions_N.sum() < 0.5 * plan.completions_N.sum()
    assert run_error(other).actual == pytest.approx(run_error(plan).actual, rel=0.3)
    assert run_error(plan).actual == pytest.approx(expected_error(plan, "value"), rel=0.4)


@pytest.mark.parametrize("of", ASKED)
@pytest.mark.parametrize("samples", [1, 3])
def test_spared_completions_cost_no_accuracy_of_what_is_asked(of: Quantity, samples: int) -> None:
    plan = Plan(spread=0, evaluations=10, prompts=64, samples=samples, of=of)
    other = sparing(plan)
    assert expected_error(other, of) <= expected_error(plan, of)
    assert other.completions_N.sum() <= plan.completions_N.sum()
    assert (other.prompts, other.evaluations) == (plan.prompts, plan.evaluations)


@pytest.mark.slow
def test_the_command_names_the_settings_of_the_cheapest_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--seed-spread", "0.01", "--prompts", "256", "--samples", "4", "--evaluations", "20", "--seeds", "3"]
    plan = Plan(spread=0.01, evaluations=20, prompts=256, samples=4)
    other = sparing(plan)
    assert main(["design", *asked]) == 0
    said = capsys.readouterr().out
    assert f"{int(other.completions_N.sum()):,} (" in said
    assert f"Evaluation.early_samples = {other.early_samples}, samples = {other.samples}, full_from = " in said
    spared = ["--samples", str(other.samples), "--early-samples", str(other.early_samples)]
    assert main(["design", *asked, *spared, "--full-from", str(other.full_from), "--json"]) == 0
    [task] = json.loads(capsys.readouterr().out)["tasks"]
    assert task["evaluations"][0]["completions"] == int(other.completions_N.sum())
    assert task["evaluations"][0]["error"] == pytest.approx(expected_error(replace(other, of="value"), "value"))


@pytest.mark.parametrize(
    ("given", "message"),
    [(["--early-samples", "17"], "17 early samples of 16"), (["--full-from", "1"], "all samples from 1 of the budget")],
)
def test_evaluations_that_cannot_be_are_refused(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["design", "--seed-spread", "0.01", *given]) == 1
    assert message in capsys.readouterr().err
