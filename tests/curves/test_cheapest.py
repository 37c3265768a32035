"""The cheapest study: it finds what it says it finds, and no other of those that are tried does for less."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.curves import cheapest as module
from scalelab.curves.cheapest import Study, cheapest, cost, largest_error
from scalelab.curves.design import Plan, RunError, power, studies
from scalelab.curves.sparing import expected_error

PLAN = Plan(spread=0.0125, prompts=400, samples=4, recipes=3)


def found_with(plan: Plan, error: float, difference: float) -> float:
    """Share of studies in which a plan whose runs have this error finds a difference, by a loop over studies."""
    rng, hits, total = np.random.default_rng(5), 0, 400
    spreads = np.geomspace(0.0005, 0.3, 60)
    prior = 1 / (1 + (spreads / 0.03) ** 2 / 3) ** 2 * spreads
    for _ in range(total):
        runs = rng.normal(0, np.hypot(plan.spread, error), (plan.recipes, plan.seeds))
        gap = runs[1].mean() - runs[0].mean() + difference + rng.normal(0, plan.prompt_spread / plan.prompts**0.5)
        squares = ((runs - runs.mean(1, keepdims=True)) ** 2).sum()
        variance = spreads**2 + error**2
        weight = prior * variance ** (-0.5 * plan.recipes * (plan.seeds - 1)) * np.exp(-0.5 * squares / variance)
        width = np.sqrt(2 * variance / plan.seeds + plan.prompt_spread**2 / plan.prompts)
        drawn = rng.normal(gap, rng.choice(width, 2000, p=weight / weight.sum()))
        hits += bool(np.mean(drawn > 0) >= (0.95 if plan.recipes == 2 else 0.975))
    return hits / total


@pytest.mark.parametrize("prompt_spread", [0.0, 0.15])
def test_studies_with_the_largest_error_find_the_difference_as_often_as_wanted(prompt_spread: float) -> None:
    plan = replace(PLAN, seeds=9, prompt_spread=prompt_spread)
    error = largest_error(plan, 0.025, wanted=0.7)
    assert error is not None
    assert found_with(plan, error, 0.025) == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("prompt_spread", [0.0, 0.3])
def test_a_difference_that_is_not_there_is_held_for_sure_as_seldom_as_said(prompt_spread: float) -> None:
    plan = replace(PLAN, seeds=50, prompts=100, prompt_spread=prompt_spread)
    above = studies(plan, RunError(0.001, 0.001, 0.0)).above(0.0)
    for probability in (0.05, 0.5, 0.95):
        assert (above >= probability).mean() == pytest.approx(1 - probability, abs=0.02)


def test_no_error_is_small_enough_where_seeds_alone_hide_the_difference() -> None:
    assert largest_error(replace(PLAN, seeds=2), 0.01, wanted=0.9) is None


def test_the_cheapest_study_is_that_of_a_search_of_all() -> None:
    found = cheapest(PLAN, 0.025, training=5000, wanted=0.7)
    assert found is not None
    assert found.completions == cost(found.plan, 5000)
    assert found.power == power(found.plan, 0.025) >= 0.7
    errors = [(one, expected_error(one, "value")) for one in module._evaluations(PLAN)]
    least = float("inf")
    for seeds in range(2, 25):
        for one, error in errors:
            plan = replace(one, seeds=seeds)
            if cost(plan, 5000) < least:
                above = studies(plan, RunError(error, error, 0.0)).above(0.025)
                if (above >= 0.975).mean() >= 0.7:
                    least = cost(plan, 5000)
    added = cost(replace(found.plan, seeds=1), 5000)  # a seed more, where simulated runs find it more seldom
    assert least <= found.completions <= 1.02 * least + 2 * added


def test_dear_training_takes_fewer_seeds_and_better_evaluations() -> None:
    cheap, dear = (cheapest(PLAN, 0.025, training) for training in (500, 1_000_000))
    assert cheap is not None
    assert dear is not None
    assert cheap.plan.seeds > dear.plan.seeds
    assert expected_error(cheap.plan, "value") > expected_error(dear.plan, "value")


def test_prompts_come_before_samples_where_the_verdict_is_about_new_ones() -> None:
    these, new = (cheapest(replace(PLAN, prompts=2000, prompt_spread=spread), 0.025, 20_000) for spread in (0.0, 0.3))
    assert these is not None
    assert new is not None
    assert these.plan.prompts == 2000
    assert new.completions > these.completions
    assert new.plan.prompts >= 1000
    assert new.plan.samples <= 2


def test_the_command_names_the_cheapest_study(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["design", "--seed-spread", "0.0125", "--seeds", "2", "--training-completions", "30000"]
    assert main(argv) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tasks"][0]["cheapest"]
    plan = found["plan"]
    assert (
        f"The cheapest study that finds 0.02: {plan['seeds']} seeds of each recipe, {plan['evaluations']} evaluations "
        f"of 1,000 prompts, Evaluation.early_samples = {plan['early_samples'] or plan['samples']}, samples = "
        f"{plan['samples']}"
    ) in text
    assert f"{found['completions']:,} completions, training included" in text
    assert main([*argv, "--difference", "0.001"]) == 0
    assert "No study of up to 100 seeds of each recipe finds 0.001" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--training-completions", "0"], "a run that trains on 0 completions is none"),
        (["--prompt-spread", "-1"], "a prompt spread of -1 makes no sense"),
        (["--prompt-spread", "0.1", "--of", "B"], "where a pass rate or A is compared"),
    ],
)
def test_costs_that_cannot_be_are_refused(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "--seed-spread", "0.0125", *given]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_study_that_takes_all_samples_throughout_names_no_place_from_which_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scalelab.curves.design.run_error", lambda plan: RunError(0.01, 0.01, 0.0))
    fewer = replace(PLAN, seeds=3, early_samples=1, full_from=0.75)
    for plan, told in ((fewer, "= 1, samples = 4, full_from = 0.75."), (replace(fewer, early_samples=4), "= 4.")):
        study = Study(plan, 1000, 0.9)
        monkeypatch.setattr(module, "cheapest", lambda *asked, study=study: study)
        asked = "--seed-spread 0.0125 --difference 0.1 --seeds 2 --samples 1 --evaluations 8 --training-completions 9"
        assert main(["design", *asked.split()]) == 0
        assert f"{told} It makes 1,000 completions" in " ".join(capsys.readouterr().out.split())
