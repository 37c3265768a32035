"""Ending losers early: the bound on the chance to end the best, over every look, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.curves import Analysis, Options, analyse, curve
from scalelab.curves.estimates import RunEstimates
from scalelab.curves.hierarchy import RATE, recipe_effects
from scalelab.curves.stopping import chances_to_be_best, losers
from scalelab.errors import LabError
from tests.helpers.curve_points import rate


def run(name: str, A: float, points: int = 20, seed: int = 0) -> Analysis:
    compute = np.arange(points + 1) / 20
    clean = rate(compute, R0=0.3, A=A, B=1.8, C_mid=0.2)
    measured = np.random.default_rng(seed).binomial(8000, clean) / 8000
    item = curve(compute, measured, np.sqrt(clean * (1 - clean) / 8000), run=name)
    return analyse(item, Options(checks=False))


def test_a_run_far_below_is_ended_and_the_best_and_its_equal_are_not() -> None:
    runs = [run("best", 0.7), run("equal", 0.7, seed=1), run("poor", 0.5, points=10, seed=2)]
    assert set(losers(runs, 1.0, 3)) == {"poor"}


def test_a_run_is_left_alone_before_a_quarter_and_beside_nothing() -> None:
    best, early = run("best", 0.7), run("early", 0.4, points=4, seed=2)
    assert losers([best, early], 1.0, 2) == {}
    assert losers([early], 0.2, 5) == {}


def test_more_recipes_and_a_smaller_error_end_fewer() -> None:
    runs = [run("best", 0.66), run("worse", 0.58, points=12, seed=1)]
    chance = chances_to_be_best(runs, 1.0)["worse"]
    assert 0 < chance < 0.5
    error = 2 * chance
    assert "worse" in losers(runs, 1.0, 2, error)
    assert "worse" not in losers(runs, 1.0, 9, error)
    assert "worse" not in losers(runs, 1.0, 2, chance / 2)
    with pytest.raises(LabError, match="no probability"):
        losers(runs, 1.0, 2, 0.0)


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(st.integers(3, 6))
def test_over_many_looks_the_best_is_ended_no_more_often_than_stated(recipes: int) -> None:
    """The law behind the rule, with runs as the model believes them and estimates that sharpen at each look."""
    rng, error, wrong, sweeps = np.random.default_rng(recipes), 0.2, 0, 40
    names = tuple(str(index) for index in range(recipes))
    for _ in range(sweeps):
        true = 0.6 + rng.normal(0, np.exp(rng.normal(np.log(0.03), 1.3)), recipes)
        ended: set[int] = set()
        total, looks = np.zeros(recipes), 0
        for looks in range(1, 9):
            total += true + rng.normal(0, 0.03, recipes)
            seen = RunEstimates(
                total / looks,
                np.full(recipes, 0.03 / np.sqrt(looks)),
                np.arange(recipes),
                np.full(recipes, -1),
                names,
            )
            best = recipe_effects(seen, RATE, spread=0.0, size=4000, seed=looks).best()
            ended |= {index for index in range(recipes) if best[names[index]] < error / (recipes - 1)}
        wrong += int(true.argmax()) in ended
    assert wrong <= error * sweeps + 2 * np.sqrt(error * (1 - error) * sweeps)
