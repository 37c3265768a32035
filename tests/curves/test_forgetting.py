"""Tasks that forget: falling logs are fitted, forecast, compared and decided about as the mirror of rising ones."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from curve_tables.contradictions import of_fit
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.commands.ending import closing_lines
from scalelab.curves import (
    Curve,
    FitError,
    Options,
    analyse,
    analyse_all,
    compare,
    compute_for,
    curve,
    decide,
    extend_or_stop,
    fit_curve,
    forecast,
    parallel,
    read_sources,
)
from scalelab.curves.ahead import table
from scalelab.curves.calibrate import calibrate, like
from scalelab.curves.efficiency import efficiency
from scalelab.curves.joint_draws import joint_draws
from scalelab.kept import Kept
from scalelab.view.lab import Lab
from tests.helpers.curve_points import rate, run_points

QUICK = Options(checks=False)
FALL: dict[str, Any] = {"R0": 0.75, "A": 0.4, "B": 1.8, "C_mid": 0.3}
COMPUTE = np.arange(21) / 20


def written(path: Path, noise: float = 0.008, **tasks: dict) -> str:
    """A CSV of runs and tasks, of names such as `joint_code`, each a sigmoid up to 20 GPU-hours."""
    lines = ["run,task,gpu_hours,pass_rate,n"]
    for seed, (name, parameters) in enumerate(tasks.items()):
        points = zip(*run_points(20, noise, seed, **parameters))
        lines += [f"{name.replace('_', ',')},{20 * compute},{passed},2000" for compute, passed in points]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A run that learns math and forgets code, and one that learns both."""
    other = FALL | {"A": 0.82, "C_mid": 0.2}
    return written(tmp_path / "log.csv", joint_math={"A": 0.68}, joint_code=FALL, kept_math={"A": 0.6}, kept_code=other)


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv]) == 0
    return " ".join(capsys.readouterr().out.split())


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def several(run: str, seed: int = 0, noise: float = 0.006, **parameters: float) -> Curve:
    """Three seeds of a recipe, whose A differ."""
    rng = np.random.default_rng(seed)
    ends = parameters.pop("A") + 0.012 * rng.standard_normal(3)
    rates = [rate(COMPUTE, A=A, **parameters) + noise * rng.standard_normal(21) for A in ends]
    labels = [f"{run}{at}" for at in range(3) for _ in COMPUTE]
    return curve(np.tile(COMPUTE, 3), np.concatenate(rates), np.full(63, noise), seed=labels, run=run)


def mirrored(item: Curve) -> Curve:
    """Count failures for passes."""
    return replace(item, pass_rate_N=1 - item.pass_rate_N)


@pytest.mark.slow
def test_fit_says_from_where_a_task_falls_and_towards_which_floor(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, "fit", source, "--sigmoid-only")
    assert re.search(r"joint · code: forgets: falls from 0\.7\d\d towards 0\.[34]\d\d \(80% 0\.\d{3}–0\.\d{3}\)", out)
    assert "of a sigmoid's fall was seen; no other shape was looked at" in out
    assert "joint · math: forgets" not in out
    assert "joint: code and math: one rises, one falls, so whether they are parallel is not asked" in out
    fits = {(one["run"], one["task"]): one for one in told(capsys, "fit", source)["fits"]}
    assert [fits[name]["forgets"] for name in (("joint", "code"), ("joint", "math"), ("kept", "code"))] == [1, 0, 0]
    code = fits["joint", "code"]
    for name, truth in (FALL | {"C_mid": 6.0}).items():
        low, high = code["intervals"][name]
        assert low <= code[name] <= high
        assert low - 0.3 * truth <= truth <= high + 0.3 * truth
    for one in code["rates"]:
        truth = float(rate(one["times"], **FALL))
        assert one["interval"][0] - 0.01 <= truth <= one["interval"][1] + 0.01
    assert 0.7 < code["gain_seen"] < 1


def test_forecast_says_when_a_rate_is_fallen_to_and_that_more_compute_harms(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["forecast", source, "--task", "code", "--at", "20", "40", "--target", "0.5", "0.9", "0.2", "--wide"]
    found, out = told(capsys, *argv), said(capsys, *argv)
    now, then = (one["value"] for one in found["forecasts"][:2])
    assert now - then == pytest.approx(float(rate(1.0, **FALL) - rate(2.0, **FALL)), abs=0.02)
    half, above, below = found["targets"][:3]
    assert half["forgets"] is True
    assert half["compute"] == pytest.approx(20 * 0.3 * 2.5 ** (1 / 1.8), rel=0.1)
    assert (half["reading"], above["reading"]) == ("fallen to it already", "below it from the start, and it falls")
    assert below["reading"].startswith(("not fallen to: the curve stays above", "probably not fallen to: the curve"))
    advice = found["extend"][0]
    assert advice["reading"].startswith("stop: more compute makes this task worse, as it forgets; doubling the budget")
    assert advice["gain_if_doubled"] == pytest.approx(then - now, abs=0.005)
    assert "joint · code: forgets: falls from" in out
    assert "twice the compute would lower it by 0.0" in out
    assert "that is not worth it (<1% that it adds 0.01 or more)" in out
    assert "down to 0.5" in out


def test_compare_names_a_run_that_forgets_worse_and_says_why() -> None:
    forgets, learns = several("forgets", **FALL), several("learns", R0=0.5, A=0.8)
    [one] = compare([analyse(forgets, QUICK), analyse(learns, QUICK)], baseline="learns")
    assert one.verdicts == {"forgets": "worse"}
    assert any(text.startswith("forgets forgets: falls from 0.7") for text in one.notes)
    assert any("of the way was seen" in text for text in one.notes)
    last = one.entries[-1]
    assert (last.run, last.reaches, one.rows()[-1].compute_factor) == ("forgets", 0.0, None)
    [crossing] = one.crossings.told()
    assert crossing.leader_before == "forgets"
    assert last.by_A.tied_with == ()


def test_two_runs_that_forget_alike_are_equal_and_one_that_forgets_more_is_worse() -> None:
    fits = [analyse(several(run, seed, **FALL), QUICK) for run, seed in (("a", 0), ("b", 2))]
    fits.append(analyse(several("c", 9, **FALL | {"A": 0.25}), QUICK))
    [one] = compare(fits, run_spread=0.012)
    assert one.verdicts["c"] == "worse"
    assert one.verdicts["b"] in ("equal", "cannot tell")
    [same] = compare([fits[0], analyse(replace(fits[0].fit.curve, run="d"), QUICK)])
    assert [entry.by_A.tied_with for entry in same.entries] == [(), ()]
    gap = one.entries[1].differences["c"]
    truth = float(rate(1.0, **FALL) - rate(1.0, **FALL | {"A": 0.25}))
    assert gap.median == pytest.approx(truth, abs=0.03)


@pytest.mark.slow
def test_words_about_falls_are_calibrated_by_falls() -> None:
    [one] = compare([analyse(several(run, seed, **FALL), QUICK) for run, seed in (("a", 0), ("b", 2))])
    found = calibrate([like(one)], 10, differences=(0.0, 0.1))
    same, better = found.rates[""]
    assert (same.pairs, better.pairs) == (10, 10)
    assert (same.wrong, better.better) == (pytest.approx(0, abs=0.21), pytest.approx(1, abs=0.31))


def test_an_offset_between_seeds_keeps_a_floor_between_zero_and_the_start() -> None:
    item = analyse(curve(*run_points(20, 0.01, **FALL), np.full(21, 0.01)), QUICK)
    sigmoid = joint_draws([item], spread=0.3).recipes["run"].sigmoid
    R0_M, A_M = sigmoid.theta_MP[:, 0], sigmoid.theta_MP[:, 1]
    assert (A_M >= 0).all()
    assert (A_M <= R0_M).all()
    assert (A_M == 0).mean() > 0.02
    assert (A_M == R0_M).mean() > 0.02


@pytest.mark.slow
def test_decide_counts_what_is_forgotten(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With math alone the joint run leads; with code, which it forgets, the other one does."""
    assert said(capsys, "decide", source, "--task", "math", "--budget", "20").startswith("Which recipe: joint.")
    out = said(capsys, "decide", source, "--budget", "20")
    assert out.startswith("Which recipe: kept.")
    assert "All of this counts that joint · code forgets: falls from 0.7" in out


def test_decide_expects_the_mean_of_a_gain_and_a_loss() -> None:
    up = analyse(curve(*run_points(20, 0.004, A=0.7), np.full(21, 0.004), task="math"), QUICK)
    down = analyse(curve(*run_points(20, 0.004, 1, **FALL), np.full(21, 0.004), task="code"), QUICK)
    found = decide([up, down], budget=1.0)
    gains = [extend_or_stop(item).gain_if_doubled for item in (up, down)]
    assert gains[0] > 0 > gains[1]
    assert found.choices[0].gain == pytest.approx(np.mean(gains), abs=0.004)
    assert found.step == "another setting"


def test_tasks_that_fall_together_are_parallel_and_one_that_rises_is_not_asked() -> None:
    names = {"code": FALL, "prose": FALL | {"R0": 0.6, "A": 0.2}, "math": {"A": 0.7, "B": 1.8, "C_mid": 0.3}}
    fits = [
        analyse(curve(*run_points(40, 0.003, **of), np.full(41, 0.003), task=task), QUICK) for task, of in names.items()
    ]
    found = {one.tasks: one.verdict for one in parallel(fits)}
    assert found["code", "prose"] == "parallel"
    assert found["code", "math"] == found["prose", "math"] == "one rises, one falls"


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.integers(5, 30), st.integers(0, 10_000), st.floats(0.4, 1.0), st.floats(0.8, 4.0), st.floats(0.05, 1.5),
    st.booleans(),
)  # fmt: skip
def test_a_fall_is_the_mirror_of_a_rise(points: int, seed: int, A: float, B: float, C_mid: float, known: bool) -> None:
    compute, rates = run_points(points, 0.01, seed, A=A, B=B, C_mid=C_mid)
    item = curve(compute, rates, np.full(points + 1, 0.01) if known else None)
    try:
        up = analyse(item, QUICK)
    except FitError:
        with pytest.raises(FitError):
            analyse(mirrored(item), QUICK)
        return
    down = analyse(mirrored(item), QUICK)
    assert (up.falls, down.falls) == (False, True)
    for name, value in up.params.items():
        turned = 1 - value if name in ("R0", "A") else value
        assert down.params[name] == pytest.approx(turned, rel=1e-4), name
    at = [0.3, 1.0, 2.0, 8.0]
    low_C, high_C = up.value_interval(at)
    np.testing.assert_allclose(down.value_interval(at), (1 - high_C, 1 - low_C), atol=1e-4)
    low_C, high_C = up.evaluation_interval(at)
    np.testing.assert_allclose(down.evaluation_interval(at), (1 - high_C, 1 - low_C), atol=0.015)
    assert (down.seen, down.stands) == (pytest.approx(up.seen, abs=1e-4), up.stands)
    np.testing.assert_allclose(down.draws().limit(), 1 - up.draws().limit(), atol=1e-3)
    middle = forecast(up, [1.5])[0].value
    one, other = compute_for(up, middle), compute_for(down, 1 - middle)
    assert other.compute == pytest.approx(one.compute, rel=1e-3)
    assert other.probability == pytest.approx(one.probability, abs=1e-3)
    assert extend_or_stop(down).gain_if_doubled == pytest.approx(-extend_or_stop(up).gain_if_doubled, abs=1e-4)
    assert of_fit(down) == []


@pytest.mark.slow
def test_a_comparison_of_falls_is_the_mirror_of_one_of_rises_with_the_same_spread() -> None:
    items = [several("a", A=0.62, R0=0.3), several("b", 3, A=0.7, R0=0.3)]
    [up], [down] = (compare([analyse(item, QUICK) for item in each]) for each in (items, list(map(mirrored, items))))
    one, other = (each.entries[0].differences[each.entries[1].run] for each in (up, down))
    assert (up.entries[0].run, down.entries[0].run) == ("b", "a")
    assert down.spread == (pytest.approx(up.spread[0]), pytest.approx(up.spread[1]))
    assert other.median == pytest.approx(one.median, abs=1e-5)
    assert other.interval == pytest.approx(one.interval, abs=1e-5)
    assert {one.verdict, other.verdict} == {"better"}


def test_the_line_of_a_fall_s_efficiency_has_the_slope_of_its_curve() -> None:
    fit = fit_curve(curve(*run_points(20, **FALL)))
    compute_N, F_N, line_N = efficiency(fit)
    assert len(compute_N) == 20
    np.testing.assert_allclose(F_N, line_N, rtol=1e-3)


def test_a_given_start_is_kept() -> None:
    item = curve(*run_points(20, 0.005, **FALL), np.full(21, 0.005))
    found = analyse(item, replace(QUICK, r0=0.75))
    assert (found.falls, found.params["R0"], "R0" in found.intervals) == (True, 0.75, False)
    assert found.draws().value([0.0]) == pytest.approx(0.75)
    with pytest.raises(FitError, match=r"rises, from 0\.393.*, which no curve from an R0 of 0\.900 does"):
        fit_curve(curve(*run_points(20, 0.005)), r0=0.9)


@pytest.mark.parametrize(
    ("points", "method", "reason"),
    [
        ([0.4, 0.55, 0.62, 0.66, 0.6, 0.5, 0.4, 0.3, 0.22, 0.2], "joint", "rises from .* and falls to"),
        (np.linspace(0.6, 0.3, 10), "power", "falls, from .*, which the joint sigmoid alone is fitted to"),
        pytest.param(
            np.linspace(0.6, 0.3, 10), "paper", "falls, .*, which the joint sigmoid alone is", marks=pytest.mark.slow
        ),
        ([0.5, 0.49, 0.51, 0.5, 0.48, 0.5, 0.49, 0.48, 0.5, 0.49], "joint", "do not tell a fall|neither rises nor"),
    ],
)
def test_what_is_no_forgetting_is_refused_with_the_reason(
    points: list[float] | np.ndarray, method: Literal["joint", "power", "paper"], reason: str
) -> None:
    with pytest.raises(FitError, match=reason):
        analyse(curve(range(10), points), replace(QUICK, method=method))


@pytest.mark.slow
def test_constants_look_like_forgetting_no_more_often_than_like_a_rise() -> None:
    rng, found = np.random.default_rng(2), {True: 0, False: 0}
    for index in range(300):
        count, passed = (6, 8, 12, 20)[index % 4], rng.uniform(0.1, 0.9)
        points = rng.binomial(500, passed, count) / 500
        stderr = np.full(count, np.sqrt(passed * (1 - passed) / 500)) if index % 8 < 4 else None
        with suppress(FitError):
            found[fit_curve(curve(range(1, count + 1), points, stderr)).falls] += 1
    assert found[True] <= 9
    assert found[False] <= 9


@pytest.mark.slow
@pytest.mark.nightly
def test_intervals_of_falls_hold_about_as_often_as_they_say() -> None:
    rng, held, runs = np.random.default_rng(11), 0, 100
    for _ in range(runs):
        R0 = rng.uniform(0.4, 0.95)
        truth = {
            "R0": R0,
            "A": rng.uniform(0.05, R0 - 0.15),
            "B": rng.uniform(0.9, 2.6),
            "C_mid": rng.uniform(0.1, 0.7),
        }
        clean = rate(COMPUTE, **truth)
        points = curve(COMPUTE, rng.binomial(960, clean) / 960, np.sqrt(np.clip(clean * (1 - clean), 1e-3, 1) / 960))
        low, high = analyse(points, QUICK).rates()[1].interval
        held += low <= float(rate(2.0, **truth)) <= high
    assert 0.76 * runs <= held <= 0.94 * runs


def test_words_that_contradict_a_fall_would_be_found() -> None:
    found = analyse(curve(*run_points(20, 0.01, **FALL), np.full(21, 0.01)), QUICK)
    assert of_fit(found) == []
    assert any("falls is False" in text for text in of_fit(replace(found, fit=found.fit.mirrored())))


@pytest.mark.slow
def test_the_page_tells_a_fall_and_when_a_rate_is_fallen_to(source: str) -> None:
    lab = Lab([Path(source)], kept=Kept(None))
    lab.update()
    overview = lab.overview()
    by_task = {one["task"]: one for one in overview["answers"]}
    assert "joint forgets: falls from 0.7" in by_task["code"]["text"]
    assert "forgets" not in by_task["math"]["text"]
    [fit] = [one for one in overview["fits"] if (one["run"], one["task"]) == ("joint", "code")]
    assert fit["forgets"] is True
    [item] = [one for one in lab.curves if (one.run, one.task) == ("joint", "code")]
    columns = table(analyse(item))
    assert columns["targets"]["reading"][49] == "fallen to it already"
    assert np.all(np.diff(columns["middle"]) <= 1e-6)
    assert max(columns["gain"][-20:]) < 0


def test_closing_lines_of_a_run_say_what_it_forgets(source: str) -> None:
    curves = [item for item in read_sources([Path(source)]) if item.run == "joint"]
    code, math = closing_lines(curves, *analyse_all(curves))
    assert "at the end by its curve; it forgets: falls from 0.7" in code
    assert "twice the compute would lower it by 0.0" in code
    assert "forget" not in math


@pytest.mark.slow
def test_laws_and_designs_leave_out_what_falls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(written(tmp_path / "log.csv", a_code={"A": 0.6}, b_code={"A": 0.7}, c_code=FALL))
    head, *lines = path.read_text().splitlines()
    batch = {"a": 8, "b": 16, "c": 32}
    path.write_text("\n".join([head + ",batch", *(f"{line},{batch[line[0]]}" for line in lines)]) + "\n")
    assert main(["law", str(path), "--axis", "batch"]) == 1
    out = capsys.readouterr().out
    assert "code: 2 runs" in out
    assert "refused: c · code forgets, and laws are of curves that rise: leave it out" in out
    forgetful = written(tmp_path / "falls.csv", c_code=FALL)
    assert main(["design", forgetful, "--difference", "0.05"]) == 1
    assert "none of the pilot runs carries a fit that rises" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        (
            [0.60, 0.57, 0.55, 0.47, 0.44, 0.40, 0.33, 0.335, 0.35, 0.34, 0.36, 0.40, 0.46, 0.49],
            r"falls from 0\.573 to 0\.338 at .* and rises to 0\.450 \(means of three\), which no falling curve does",
        ),
        (
            [0.61, 0.55, 0.47, 0.40, 0.35, 0.33, 0.32, 0.33, 0.36, 0.42, 0.50, 0.57, 0.60, 0.615],
            r"falls from 0\.543 to 0\.327 at .* and rises to 0\.595",
        ),
    ],
)
def test_a_task_that_falls_and_rises_again_is_no_forgetting(rates: list[float], reason: str) -> None:
    with pytest.raises(FitError, match=reason):
        fit_curve(curve(range(len(rates)), rates, [0.011] * len(rates)))


def test_seeds_that_go_apart_are_not_called_forgetting() -> None:
    falling, rising = rate(COMPUTE, R0=0.6, A=0.4), rate(COMPUTE, R0=0.6, A=0.75)
    seeds = [0] * len(COMPUTE) + [1] * len(COMPUTE)
    noise = 0.01 * np.random.default_rng(0).standard_normal(2 * len(COMPUTE))
    both = curve(np.tile(COMPUTE, 2), np.concatenate([falling, rising]) + noise, [0.01] * len(seeds), seed=seeds)
    with pytest.raises(FitError, match=r"seed 1 rises from .* while the mean of the seeds falls"):
        fit_curve(both)
    alike = curve(np.tile(COMPUTE, 2), np.concatenate([falling, falling]) + noise, [0.01] * len(seeds), seed=seeds)
    assert fit_curve(alike).falls


def test_a_given_start_below_a_falling_log_is_the_reason_that_is_told() -> None:
    """One that lies above the floor, too, from which a curve could fall."""
    for r0 in (0.3, 0.5, 0.53):
        with pytest.raises(FitError, match=rf"falls, from .* which no curve from an R0 of {r0:.3f} does"):
            fit_curve(curve(COMPUTE, rate(COMPUTE, R0=0.7, A=0.45), [0.01] * len(COMPUTE)), r0=r0)


def test_a_comparison_of_tasks_that_forget_has_no_compute_to_a_rate_and_calls_none_unstable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = []
    for name, A, seed in (("one", 0.40, 1), ("two", 0.47, 2)):
        points = rate(COMPUTE, R0=0.7, A=A) + 0.005 * np.random.default_rng(seed).standard_normal(len(COMPUTE))
        lines = "".join(f"{c},{r}\n" for c, r in zip(COMPUTE, points))
        (tmp_path / f"{name}.csv").write_text("compute,pass_rate\n" + lines)
        sources.append(str(tmp_path / f"{name}.csv"))
    assert main(["compare", *sources, "--json"]) == 0
    [entries] = json.loads(capsys.readouterr().out)["tasks"].values()
    for entry in entries:
        assert entry["forgets"] is True
        assert entry["falls"] == []
        low, middle, high = (entry["fall_rate"][at] for at in (1, 0, 2))
        assert low <= middle <= high
        assert {one["log_reach"] for one in entry["differences"].values()} == {None}
        for name, row in entry["covariance"].items():
            assert entry["stderr"][name] == pytest.approx(row[name] ** 0.5)


def test_a_fall_that_no_sigmoid_makes_has_no_floor_by_one() -> None:
    compute = np.arange(1.0, 25)
    rate = 0.985 - 0.35 / (1 + np.exp(17 - compute)) + np.random.default_rng(1).normal(0, 0.006, 24)
    found = analyse(curve(compute, rate, np.full(24, 0.006)))
    assert found.falls
    assert found.draws().probability[0] < 0.01
    assert not found.stands
    assert "beyond A" not in found.asymptote_text(), "no shape goes there"
    assert found.fall_text().endswith("to 0.637 at 24 compute, and where it ends cannot be told yet")
