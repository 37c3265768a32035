"""Several curves: shared parameters, rankings, crossings, and the linearised plot."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from scalelab.curves import analyse, compare, curve, fit_curve, sharing_test
from scalelab.curves.compare import compare_point, tie_groups
from scalelab.curves.efficiency import efficiency
from scalelab.curves.estimates import LONGEST, RunEstimates, run_draws
from scalelab.curves.forecast import crossings
from scalelab.curves.hierarchy import recipe_effects
from scalelab.curves.sharing import fit_together
from scalelab.errors import LabError
from scalelab.numbers import percent
from tests.helpers.curve_points import rate

COMPUTE = np.arange(31) / 30


def make(run="run", task="math", noise=0.004, seed=0, unit="GPU-hours", **parameters):
    points = rate(COMPUTE, **parameters) + noise * np.random.default_rng(seed).standard_normal(31)
    return curve(COMPUTE, np.clip(points, 0, 1), np.full(31, max(noise, 1e-4)), run=run, task=task, unit=unit)


@cache
def recipes():
    """A baseline, one as high but slower, one lower, one higher but much slower."""
    return [
        analyse(make("base", seed=1, A=0.65, B=2.0, C_mid=0.15)),
        analyse(make("slower", seed=2, A=0.645, B=1.4, C_mid=0.15)),
        analyse(make("lower", seed=3, A=0.5, B=2.0, C_mid=0.12)),
        analyse(make("late", seed=4, A=0.8, B=1.6, C_mid=0.5)),
    ]


@cache
def slower_by_half():
    """Two recipes that differ in C_mid alone, by a factor of 1.5; three seeds of each, and the seeds shared."""
    return compare(
        [
            analyse(
                curve(
                    np.tile(COMPUTE, 3),
                    np.concatenate([make(seed=10 * at + s, A=0.65, B=1.8, C_mid=C_mid).pass_rate_N for s in range(3)]),
                    np.full(93, 0.004),
                    seed=np.repeat(np.arange(3), 31).tolist(),
                    run=run,
                )
            )
            for at, (run, C_mid) in enumerate((("base", 0.12), ("slow", 0.18)))
        ]
    )[0]


@pytest.mark.slow
def test_differences_of_the_midpoint_and_of_the_compute_to_a_pass_rate_are_those_of_the_curves() -> None:
    slow = next(entry for entry in slower_by_half().entries if entry.run == "slow")
    found = slow.differences["base"]
    for median, (low, high) in (
        (found.log_C_mid, found.log_C_mid_interval),
        (found.log_reach, found.log_reach_interval),
    ):
        assert low < np.log(1.5) < high
        assert median == pytest.approx(np.log(1.5), abs=0.15)
        assert low > 0


def test_the_compute_to_a_pass_rate_is_where_the_curve_has_it() -> None:
    item = recipes()[0]
    asked = compare_point([item], None, None)
    R0, A, B, C_mid = item.fit.parameters.values()
    assert asked.reach == pytest.approx(0.5 * (R0 + float(item.fit.value(1.0)[0])))
    fine = np.geomspace(1e-3, 1, 200_000)
    slow = float(fine[np.argmax(rate(fine, R0, A, B, C_mid) >= asked.reach)])
    drawn = run_draws("", item.curve_draws(), item, asked)
    assert float(np.exp(np.median(drawn.log_reach))) == pytest.approx(slow, rel=0.05)
    for beyond, factor in ((0.999, LONGEST), (0.001, 1 / LONGEST)):
        never = run_draws("", item.curve_draws(), item, compare_point([item], None, beyond))
        assert np.exp(never.log_reach) == pytest.approx(np.full(len(never.log_reach), factor))


def test_shared_and_separate_b_are_told_apart() -> None:
    parallel = [
        fit_curve(make(task=task, seed=s, A=A, B=1.7, C_mid=0.2))
        for s, (task, A) in enumerate((("m", 0.6), ("c", 0.9)))
    ]
    crossed = [
        fit_curve(make(task=task, seed=s, A=A, B=B, C_mid=0.2))
        for s, (task, A, B) in enumerate((("m", 0.6, 2.6), ("c", 0.9, 1.1)))
    ]
    assert sharing_test(parallel).supported == "shared"
    assert sharing_test(crossed).supported == "separate"
    assert sharing_test(crossed).p_value < 1e-3


def test_a_shared_parameter_is_one_number_and_costs_likelihood() -> None:
    fits = [fit_curve(make(task=task, seed=s, B=B)) for s, (task, B) in enumerate((("m", 1.8), ("c", 1.5)))]
    together, apart = fit_together(fits, ("B", "A")), fit_together(fits, ())
    rows = together.rows()
    assert rows[0][2]["B"] == rows[1][2]["B"]
    assert rows[0][2]["A"] == rows[1][2]["A"]
    assert (together.free, apart.free) == (6, 8)
    assert together.deviance >= apart.deviance - 1e-9
    for fit, (_, _, values, _) in zip(fits, apart.rows()):
        alone = fit_curve(fit.curve, prior=None).parameters
        assert values == pytest.approx(alone, rel=2e-2)


@pytest.mark.slow
def test_the_sharing_test_keeps_its_size() -> None:
    rejected = []
    for seed in range(60):
        fits = [
            fit_curve(make(task=t, noise=0.01, seed=2 * seed + s, A=A, B=1.7, C_mid=0.15))
            for s, (t, A) in enumerate((("m", 0.6), ("c", 0.9)))
        ]
        rejected.append(sharing_test(fits).p_value < 0.1)
    assert np.mean(rejected) < 0.22


def test_sharing_without_sense_is_refused() -> None:
    fit = fit_curve(make())
    with pytest.raises(LabError, match="at least two"):
        sharing_test([fit])
    with pytest.raises(LabError, match="cannot share 'D'"):
        sharing_test([fit, fit], ("D",))
    with pytest.raises(LabError, match="mixed units"):
        sharing_test([fit, fit_curve(make(unit="core-hours"))])


def test_ranking_is_by_a_and_by_b_where_a_ties() -> None:
    (found,) = compare(recipes())
    assert [entry.run for entry in found.entries] == ["late", "base", "slower", "lower"]
    base, slower = found.entries[1], found.entries[2]
    assert base.tied_with == ("slower",)
    assert base.common_A == slower.common_A
    assert base.B_at_common_A > slower.B_at_common_A
    low, high = base.B_interval
    assert low <= base.B_at_common_A <= high


def test_tie_rules() -> None:
    analyses = recipes()
    names = [[item.fit.curve.run for item in group] for group in tie_groups(analyses, "margin", 0.02)]
    assert names == [["late"], ["base", "slower"], ["lower"]]
    assert len(tie_groups(analyses, "margin", 1.0)) == 1
    assert [len(group) for group in tie_groups(analyses, "overlap")][-1] == 1
    with pytest.raises(LabError, match="unknown tie rule"):
        compare(analyses, tie="coin")


def test_probabilities_to_beat_add_up_and_follow_the_curves() -> None:
    (found,) = compare(recipes(), at=1.0, run_spread=0.0125)
    by_run = {entry.run: entry for entry in found.entries}
    for first in by_run:
        for second, chance in by_run[first].beats.items():
            assert chance + by_run[second].beats[first] == pytest.approx(1, abs=1e-9)
    assert by_run["base"].beats["lower"] > 0.99
    early, late = (compare(recipes(), at=at, run_spread=0.0125)[0] for at in (0.1, 20.0))
    assert next(e for e in early.entries if e.run == "late").beats["base"] < 0.05
    assert next(e for e in late.entries if e.run == "late").beats["base"] > 0.95
    wide, narrow = (compare(recipes()[:2], run_spread=spread)[0].entries[0].beats["slower"] for spread in (0.1, 0.0))
    assert abs(wide - 0.5) < abs(narrow - 0.5)


def test_crossings_are_where_the_true_curves_cross() -> None:
    base, *_, late = recipes()
    [found] = crossings([late, base])
    grid = np.linspace(0.1, 3, 20_000)
    above = rate(grid, A=0.8, B=1.6, C_mid=0.5) > rate(grid, A=0.65, B=2.0, C_mid=0.15)
    truth = grid[np.argmax(above)]
    assert found.probability > 0.9
    assert found.leader_before == "base"
    assert found.compute == pytest.approx(truth, rel=0.25)


def test_linearised_points_lie_on_a_line_of_slope_b() -> None:
    fit = fit_curve(make(noise=0.0), prior=None)
    compute_N, F_N, line_N = efficiency(fit)
    np.testing.assert_allclose(F_N, line_N, rtol=0.02)
    slope = np.polyfit(np.log(compute_N), np.log(F_N), 1)[0]
    assert slope == pytest.approx(1.6, rel=0.01)


def test_equal_curves_do_not_cross() -> None:
    twins = [analyse(make(name, seed=9)) for name in ("one", "other")]
    assert [found.compute for found in crossings(twins)] == [None]


@pytest.mark.parametrize("wrong", [{"at": -5.0}, {"at": 0.0}, {"at": np.nan}, {"run_spread": -1.0}, {"margin": -1.0}])
def test_numbers_without_sense_are_refused(wrong) -> None:
    with pytest.raises(LabError, match=r"cannot compare at|makes no sense"):
        compare(recipes(), **wrong)


def test_runs_of_one_name_are_not_compared() -> None:
    with pytest.raises(LabError, match="two runs of one task are called base"):
        compare([*recipes(), recipes()[0]])


def test_where_rank_and_probability_disagree_the_reader_is_told() -> None:
    (found,) = compare(recipes(), at=0.15, run_spread=0.003)
    assert found.entries[0].run == "late"
    assert any("ranks below late by A and B" in note and "probably above it at 0.15" in note for note in found.notes)


def simulated_runs(rng, recipes_, seeds, own, shared, apart, error=0.006):
    """Runs of recipes whose true values scatter by `apart`, and the true values."""
    truth = 0.6 + apart * rng.standard_normal(recipes_)
    values = (
        truth[:, None] + shared * rng.standard_normal(seeds) + rng.normal(0, np.hypot(own, error), (recipes_, seeds))
    )
    count = recipes_ * seeds
    runs = RunEstimates(
        values.ravel(),
        np.full(count, error),
        np.repeat(np.arange(recipes_), seeds),
        np.tile(np.arange(seeds), recipes_),
        tuple(str(at) for at in range(recipes_)),
    )
    return runs, truth


@pytest.mark.slow
@pytest.mark.parametrize(("recipes_", "seeds"), [(2, 2), (2, 4), (9, 1), (9, 2)])
@pytest.mark.parametrize("own", [0.0125, 0.03])
def test_variants_that_do_nothing_are_seldom_called_winners(recipes_: int, seeds: int, own: float) -> None:
    rng = np.random.default_rng(1)
    false = []
    for _ in range(60):
        found = recipe_effects(simulated_runs(rng, recipes_, seeds, own, 0.03, 0.0)[0], size=800)
        false.append(max(found.above(str(at), "0") for at in range(1, recipes_)) >= 0.9)
    assert np.mean(false) <= 0.1


def test_what_is_called_likely_is_right_as_often() -> None:
    rng = np.random.default_rng(2)
    said, right = [], []
    for _ in range(60):
        runs, truth = simulated_runs(rng, 6, 2, 0.0125, 0.03, 0.03)
        found = recipe_effects(runs, size=800)
        for at in range(1, 6):
            chance = found.above(str(at), "0")
            said.append(max(chance, 1 - chance))
            right.append((chance > 0.5) == (truth[at] > truth[0]))
    assert np.mean(right) == pytest.approx(np.mean(said), abs=0.08)
    sure = np.array(said) >= 0.9
    assert sure.sum() > 50
    assert np.array(right)[sure].mean() >= 0.9


def test_pairing_by_seed_sees_what_the_seeds_hide() -> None:
    rng = np.random.default_rng(3)
    paired, unpaired = [], []
    for _ in range(25):
        runs, _ = simulated_runs(rng, 2, 4, 0.003, 0.04, 0.0, error=0.003)
        better = np.where(runs.recipe_X == 1, 0.02, 0.0)
        runs = RunEstimates(runs.value_X + better, runs.error_X, runs.recipe_X, runs.seed_X, runs.recipes)
        alone = RunEstimates(runs.value_X, runs.error_X, runs.recipe_X, np.full(8, -1), runs.recipes)
        paired.append(recipe_effects(runs, size=800).above("1", "0"))
        unpaired.append(recipe_effects(alone, size=800).above("1", "0"))
    assert np.median(paired) > 0.85
    assert np.median(unpaired) < 0.8


def test_effects_agree_with_dense_bayes_by_sampling() -> None:
    runs, _ = simulated_runs(np.random.default_rng(4), 2, 3, 0.01, 0.0, 0.02)
    fast = recipe_effects(runs, spread=0.01, pooled=False)
    slow_mean = [runs.value_X[runs.recipe_X == at].mean() for at in range(2)]
    np.testing.assert_allclose(np.median(fast.draws_MR, axis=0), slow_mean, atol=0.012)
    unshared = RunEstimates(runs.value_X, runs.error_X, runs.recipe_X, np.full(6, -1), runs.recipes)
    exact = recipe_effects(unshared, spread=0.01, pooled=False, size=20_000)
    np.testing.assert_allclose(exact.draws_MR.mean(0), slow_mean, atol=5e-4)
    np.testing.assert_allclose(exact.draws_MR.std(0), np.hypot(0.01, 0.006) / np.sqrt(3), rtol=0.03)


def test_a_seed_without_a_curve_is_named_in_the_notes() -> None:
    compute = np.arange(13) / 12
    rng = np.random.default_rng(0)
    rising = [rate(compute) + 0.004 * rng.standard_normal(13) for _ in range(2)]
    flat = np.full(13, 0.5)
    item = curve(
        np.tile(compute, 3),
        np.clip(np.concatenate([*rising, flat]), 0, 1),
        np.full(39, 0.004),
        seed=np.repeat(["a", "b", "flat"], 13).tolist(),
        run="three",
        task="math",
        unit="GPU-hours",
    )
    other = make("other", noise=0.004, seed=7)
    [found] = compare([analyse(item), analyse(other)])
    [line] = [note for note in found.notes if "left out" in note]
    assert line.startswith("seed flat of three is left out of the comparison")
    assert "constant" in line


def test_probabilities_from_draws_are_never_said_to_be_certain() -> None:
    runs = RunEstimates(np.array([0.2, 0.9]), np.full(2, 1e-4), np.arange(2), -np.ones(2, int), ("low", "high"))
    effects = recipe_effects(runs, spread=1e-4)
    assert 0 < effects.above("low", "high") < 0.001
    assert [percent(chance) for chance in (0.0, 0.004, 0.5, 0.996, 1.0)] == ["<1%", "<1%", "50%", ">99%", ">99%"]
