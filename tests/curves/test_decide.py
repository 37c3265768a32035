"""`scalelab decide`: what it proposes on designs where the answer is known, and the words it prints."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.curves import Analysis, Options, analyse, curve, decide, forecast
from scalelab.curves.forecast import gain_text
from scalelab.errors import LabError
from tests.helpers.curve_points import rate, run_points, table

COMPUTE = np.arange(21) / 20


def recipe(
    run: str, A: float, C_mid: float, seeds: int = 2, noise: float = 0.004, start: int = 0, task: str = ""
) -> Analysis:
    rng = np.random.default_rng(start)
    rows = [rate(COMPUTE, A=A, C_mid=C_mid) + noise * rng.standard_normal(21) for _ in range(seeds)]
    labels = [f"{run}{seed}" for seed in range(seeds) for _ in COMPUTE]
    points = np.clip(np.concatenate(rows), 0, 1)
    item = curve(np.tile(COMPUTE, seeds), points, np.full(21 * seeds, noise), seed=labels, run=run, task=task)
    return analyse(item, Options(checks=False))


def test_the_recipe_that_decide_names_is_the_one_that_compare_ranks_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two late rises whose draws are skew: the mean of the one lies above that of the other, and its median below."""
    log, rows = tmp_path / "skew.csv", ["run,gpu_hours,pass_rate,stderr"]
    for run, seed in (("one", 7), ("other", 107)):
        compute, points = run_points(28, 0.04, seed, A=0.75, C_mid=0.6)
        points = np.clip(points + 0.15 * (compute > 0.6), 0, 1)
        rows += [f"{run},{c},{p},0.04" for c, p in zip(compute, points)]
    log.write_text("\n".join(rows) + "\n")
    assert main(["compare", str(log), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["rows"][""][0]
    assert main(["decide", str(log), "--budget", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["leader"], found["rate"][0]) == (first["run"], first["value"])
    assert found["best"] > 0.5
    assert found["regret"] > 0


def test_a_run_that_still_rises_is_gone_on_with() -> None:
    found = decide([recipe("rising", 0.8, 0.9), recipe("flat", 0.5, 0.05, start=1)], budget=1.0)
    assert (found.step, found.choices[0].run) == ("extend", "rising")
    truth = float(rate([2.0], A=0.8, C_mid=0.9)[0])
    assert found.choices[0].interval[0] - 0.01 <= truth <= found.choices[0].interval[1] + 0.01
    assert any(line == "Do: go on with rising." for line in found.text())


def test_compute_that_longer_runs_have_spent_is_sold_to_nobody_again() -> None:
    """One recipe ends at 1, the other at 3, where its curve is flat: what it has gained is no gain of the budget."""
    short, long = recipe("short", 0.62, 0.05), recipe("long", 0.7, 0.4, start=1)
    longer = replace(long.fit.curve, compute_N=3 * long.fit.curve.compute_N)
    long = analyse(longer, Options(checks=False))
    found = decide([short, long], budget=1.0)
    extend = next(one for one in found.choices if one.step == "extend")
    assert extend.run == "long"
    now, then = (forecast(long, [at])[0].value for at in (3.0, 4.0))
    highest = forecast(short, [1.0])[0].value
    assert extend.added
    assert extend.added[0] == pytest.approx(then - now, abs=0.001)
    assert extend.gain == pytest.approx(then - highest, abs=0.001)
    assert f"{then - highest:.3f} above the highest so far, that of short." in found.text()[1]


def test_runs_that_are_flat_and_told_apart_ask_for_another_setting() -> None:
    found = decide([recipe("better", 0.7, 0.03), recipe("worse", 0.5, 0.03, start=1)], budget=1.0)
    assert found.step == "another setting"
    assert (found.leader, found.best > 0.99, found.regret < 1e-3) == ("better", True, True)


def test_recipes_that_cannot_be_told_apart_ask_for_a_seed_before_they_ask_for_length() -> None:
    pair = [recipe("a", 0.6, 0.03, seeds=1, noise=0.03), recipe("b", 0.6, 0.03, seeds=1, noise=0.03, start=1)]
    found = decide(pair, budget=4.0, worthwhile=0.001)
    assert found.choices[0].step == "seed"
    assert found.choices[0].seeds == 4
    assert found.regret > 0.001


def longer(item: Analysis, times: float) -> Analysis:
    """The fit of the same points at so many times the compute."""
    return analyse(replace(item.fit.curve, compute_N=times * item.fit.curve.compute_N), Options(checks=False))


def test_a_seed_costs_what_a_run_of_its_own_recipe_takes() -> None:
    """The budget pays for four runs of one recipe and no run of the others, whatever the median of all is."""
    low, high = (recipe(name, A, 0.03, 1, 0.03, start=seed) for seed, (name, A) in enumerate((("a", 0.6), ("b", 0.62))))
    dear = longer(recipe("dear", 0.61, 0.003, 1, 0.03, start=2), 10)
    found = decide([longer(low, 5), high, dear], budget=4.0)
    assert found.costs == {"a": 5.0, "b": 1.0, "dear": 10.0}
    [seed] = [one for one in found.choices if one.step == "seed"]
    assert (seed.run, seed.seeds) == ("b", 4)
    [seed] = [one for one in decide([low, high, dear], budget=4.0).choices if one.step == "seed"]
    assert seed.run != "dear"


def test_a_page_says_why_no_seed_is_proposed() -> None:
    cheap, dear = recipe("cheap", 0.6, 0.1), longer(recipe("dear", 0.6, 0.1, start=1), 3)
    lines = decide([dear, cheap], budget=0.5).text()
    assert "Another seed: the budget pays for none; the cheapest, of cheap, takes 1" in lines[2]
    assert decide([cheap], budget=50.0).text()[2] == "Another seed: there is nothing to choose between."


@pytest.mark.parametrize("gain", [-1.0, float("nan")])
def test_a_gain_that_is_none_is_refused(gain: float) -> None:
    with pytest.raises(LabError, match="--worthwhile"):
        decide([recipe("a", 0.7, 0.1)], budget=1.0, worthwhile=gain)


def test_a_budget_in_another_unit_than_the_curves_is_refused() -> None:
    with pytest.raises(
        LabError, match=r"^5e-05 compute is next to nothing beside the 1 compute of a run: .* and so does --budget"
    ):
        decide([recipe("a", 0.7, 0.1)], budget=5e-5)


def test_tasks_count_alike_and_each_recipe_needs_all() -> None:
    two = [recipe("a", 0.7, 0.1, task="math"), recipe("a", 0.5, 0.1, task="code", start=1)]
    found = decide(two, budget=1.0)
    ends = [float(rate([1.0], A=A, C_mid=0.1)[0]) for A in (0.7, 0.5)]
    assert found.rate[0] == pytest.approx(np.mean(ends), abs=0.01)
    assert f"the mean over math, code is {found.rate[0]:.3f}" in found.text()[0]
    with pytest.raises(LabError, match="b carries no fit of every task"):
        decide([*two, recipe("b", 0.6, 0.1, task="math")], budget=1.0)
    with pytest.raises(LabError, match="cannot be spent"):
        decide(two, budget=0.0)


def test_the_command_prints_the_page_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), A=A) for name, A in (("base", 0.7), ("worse", 0.55))]
    assert main(["decide", *sources, "--budget", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = ["Which recipe", "Between seeds", "Extend or stop", "Another seed", "Do"]
    assert [line.partition(":")[0] for line in lines[:5]] == heads
    assert main(["decide", *sources, "--budget", "500", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == lines[:5]
    assert found["leader"] == "base"


def page(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(list(command)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("runs", [1, 2])
def test_going_on_has_the_numbers_of_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: int) -> None:
    """The budget of twice the compute is the question that `forecast` answers, of the run itself and not of another."""
    sources = [table(tmp_path / f"{name}.csv", tasks=("math",), A=A) for name, A in (("base", 0.7), ("worse", 0.55))]
    decided = page(capsys, "decide", *sources[:runs], "--budget", "1000")
    told = page(capsys, "forecast", sources[0], "--at", "2000")
    gain = re.search(r"twice the compute would (.*?\))", told)
    curve_there = re.findall(r"0\.\d+ \[0\.\d+, 0\.\d+\]", told)[-1]
    assert gain
    assert f"more for base would {gain[1]}, and end at {curve_there}." in decided
    assert "math of another run of it is" in decided, "the choice among recipes is about another run, and says so"


def test_several_seeds_are_the_recipe_and_not_another_run_of_it() -> None:
    assert "another run" not in decide([recipe("a", 0.7, 0.1), recipe("b", 0.6, 0.1, start=1)], budget=1.0).text()[0]


def test_nothing_to_gain_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = table(tmp_path / "flat.csv", tasks=("math",))
    single = page(capsys, "decide", flat, "--budget", "0.1")
    assert "best of all" not in single
    assert "there is no other to choose" in single
    assert "a new one pays if it adds anything." in single
    assert "-0.000" not in single
    assert "more than less" not in single
    both = page(capsys, "decide", flat, table(tmp_path / "worse.csv", tasks=("math",), A=0.5), "--budget", "0.1")
    assert "it is the best of all with" in both
    assert "more than less" not in both


def test_a_loss_has_the_words_of_a_loss() -> None:
    assert gain_text(-0.00001, (-0.0004, 0.0002), falls=False) == "add 0.000 (0.000 to 0.000)"
    assert gain_text(-0.012, (-0.025, -0.005), falls=True) == "lower it by 0.012 (0.005 to 0.025)"


def test_a_spread_that_no_seeds_measure_is_said_and_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One seed each: what is expected to be lost follows from a belief, until a spread or pilots are given."""
    rng, files = np.random.default_rng(4), {}
    for run, A, seeds in (("low", 0.60, 1), ("high", 0.63, 1), ("pilots", 0.62, 6)):
        rows = ["run,seed,gpu_hours,pass_rate,stderr"]
        for seed in range(seeds):
            points = rate(COMPUTE, A=A + 0.002 * (-1) ** seed, C_mid=0.1) + 0.004 * rng.standard_normal(21)
            rows += [f"{run},{seed},{c},{p},0.004" for c, p in zip(COMPUTE, points)]
        files[run] = tmp_path / f"{run}.csv"
        files[run].write_text("\n".join(rows) + "\n")

    def told(*options: str) -> tuple[float, str]:
        asked = ["decide", str(files["low"]), str(files["high"]), "--budget", "1", "--json", *options]
        assert main(asked) == 0
        found = json.loads(capsys.readouterr().out)
        return found["regret"], "\n".join(found["text"])

    believed, page = told()
    assert "Between seeds: low, high: one seed each" in page
    assert "give --seed-spread or --spread-from" in page
    given, page = told("--seed-spread", "0.002")
    assert "Between seeds: a spread of 0.002 between runs of one recipe was given." in page
    measured, page = told("--spread-from", str(files["pilots"]))
    assert "Between seeds: spread between runs of one recipe, learnt from other seeds, taken to spread alike" in page
    assert given < measured < believed / 3
    assert main(["decide", str(files["low"]), "--budget", "1", "--seed-spread", "-1"]) == 1
    assert "a seed spread of -1 makes no sense" in capsys.readouterr().err
