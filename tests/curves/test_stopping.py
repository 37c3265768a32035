"""Ending losers early: the bound on the chance to end the best, over every look, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from scalelab.curves import Analysis, Options, analyse, curve
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
def test_over_many_looks_the_best_is_seldom_ended() -> None:
    """Sweeps of simulated curves, looked at as they grow: the rule through the fits that it is used with."""
    rng, error, wrong, sweeps = np.random.default_rng(0), 0.2, 0, 15
    for sweep in range(sweeps):
        asymptotes = 0.6 + 0.04 * rng.standard_normal(4)
        ended: set[str] = set()
        for points in (6, 10, 14, 18):
            runs = [
                run(str(at), float(np.clip(A, 0.4, 0.9)), points, seed=100 * sweep + at)
                for at, A in enumerate(asymptotes)
                if str(at) not in ended
            ]
            ended |= set(losers(runs, 1.0, 4, error))
        wrong += str(int(asymptotes.argmax())) in ended
    assert wrong <= error * sweeps + 2 * np.sqrt(error * (1 - error) * sweeps)
