"""Laws across axes: against the exact posterior of normal estimates, leave-one-out, borrowing, and what to run next."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from moe.model.families import Llama4Text
from moe.model.size import parameters
from scalelab.cli import main
from scalelab.curves import analyse, curve
from scalelab.curves.design import allocate, grid_of, knowledge_gradient
from scalelab.curves.law import BELIEFS, GRID, fit_law, law_of, leave_one_out
from scalelab.curves.places import Place, place_of, readable
from scalelab.errors import LabError
from scalelab.experiment import settings_in
from scalelab.reading import pool_seeds, read_sources
from scalelab.reading.axes import config_axes
from tests.helpers.curve_points import rate

# ScaleRL, Table 1: C_mid, B, A; batch, length, active parameters
TABLE_1 = {
    "ScaleRL 8B": (2542, 1.92, 0.610, 768, 14_000, 8e9),
    "length 32k": (11272, 1.89, 0.645, 768, 32_000, 8e9),
    "Scout": (4242, 1.65, 0.710, 768, 14_000, 17e9),
    "batch 512": (2818, 1.77, 0.605, 512, 14_000, 8e9),
    "batch 2048": (10909, 1.70, 0.645, 2048, 14_000, 8e9),
}


def published() -> list[Place]:
    """The places of the table, their parameters normal about what it says."""
    places = []
    for index, (name, (C_mid, B, A, batch, length, active)) in enumerate(TABLE_1.items()):
        centre_J = np.array([np.log(0.4 / 0.6), np.log(A / (1 - A)), np.log(B), np.log(C_mid)])
        error_J = np.array([0.005 / (0.4 * 0.6), 0.0075 / (A * (1 - A)), 0.05, 0.05])
        theta_DJ = centre_J + error_J * np.random.default_rng(index).standard_normal((2000, 4))
        places.append(Place(name, {"batch": batch, "length": length, "active": active}, theta_DJ, np.zeros(2000)))
    return places


def test_slopes_are_those_of_the_exact_posterior_of_normal_estimates() -> None:
    rng, error = np.random.default_rng(3), 0.15
    x = np.log([256.0, 512, 1024, 2048, 4096])
    centre = np.array([-0.4, 0.4, 0.5, 8.0]) + np.outer(x - x.mean(), [0.0, 0.2, -0.1, 0.8])
    centre += rng.normal(0, 0.1, centre.shape)
    places = [
        Place(str(at), {"batch": float(np.exp(at))}, one + error * rng.standard_normal((4000, 4)), np.zeros(4000))
        for at, one in zip(x, centre)
    ]
    law = fit_law(places, ["batch"])
    design = np.stack([np.ones(5), x - x.mean()], 1)
    for column in range(4):
        log_weight, means, variances = [], [], []
        y = np.array([place.theta_DJ[:, column].mean() for place in places])
        for size, slope in product(*GRID):
            tau = np.exp(size * BELIEFS.log_deviation) * BELIEFS.deviation[column]
            sd = np.exp(slope * BELIEFS.log_slope) * BELIEFS.slope[column]
            prior = np.diag([100.0, sd**2])
            total = design @ prior @ design.T + (tau**2 + error**2) * np.eye(5)
            log_weight.append(multivariate_normal(np.full(5, y.mean()), total).logpdf(y) - 0.5 * (size**2 + slope**2))
            gain = prior @ design.T @ np.linalg.inv(total)
            means.append((gain @ (y - y.mean()))[1])
            variances.append((prior - gain @ design @ prior)[1, 1])
        weight = np.exp(np.array(log_weight) - max(log_weight))
        weight /= weight.sum()
        mean = weight @ means
        deviation = np.sqrt(weight @ (np.array(variances) + np.square(means)) - mean**2)
        assert law.weight_MAJ[:, 1, column].mean() == pytest.approx(mean, abs=0.25 * deviation)
        assert law.weight_MAJ[:, 1, column].std() == pytest.approx(deviation, rel=0.2)


@pytest.mark.slow
def test_a_run_that_says_no_more_than_its_prior_has_the_curve_that_the_law_foretells() -> None:
    rng, places = np.random.default_rng(0), published()
    wide_J = np.array([0.4, 1.0, 0.8, 1.5])
    theta_DJ = np.array([-0.4, 0.8, 0.6, 8.0]) + wide_J * rng.standard_normal((20_000, 4))
    log_prior_D = -0.5 * (((theta_DJ - [-0.4, 0.8, 0.6, 8.0]) / wide_J) ** 2).sum(1)
    at = {"batch": 1024.0, "length": 20_000.0, "active": 8e9}
    blank = Place("blank", at, theta_DJ, log_prior_D)
    own = readable(fit_law([*places, blank], ["batch", "length", "active"]).theta_MSJ[:, -1])
    forecast = readable(fit_law(places, ["batch", "length", "active"]).theta(at))
    for column, tolerance in ((1, 0.01), (2, 0.12)):
        assert np.median(own[:, column]) == pytest.approx(np.median(forecast[:, column]), abs=tolerance)


@pytest.mark.slow
def test_table_1_left_out_one_at_a_time_is_foretold_as_far_as_the_others_tell() -> None:
    law = fit_law(published(), ["batch", "length", "active"])
    found = {one.name: one for one in leave_one_out(law, 1e5)}
    assert all(one.inside["A"] and one.inside["value"] for name, one in found.items() if name != "Scout")
    assert {name: one.unvaried for name, one in found.items() if one.unvaried} == {
        "length 32k": ("length",),
        "Scout": ("active",),
    }
    known, belief = found["batch 512"].forecast.interval, found["length 32k"].forecast.interval
    assert known[1] - known[0] < belief[1] - belief[0]
    slopes = law.slopes()
    assert 0.005 < slopes["batch"]["A"][0] < 0.035
    assert slopes["active"]["A"][1][0] > 0.03
    assert slopes["length"]["C_mid"][1][0] > 1


@pytest.mark.slow
def test_the_law_without_one_run_is_that_of_the_others_from_the_beginning() -> None:
    """The chains of the law of all go on without the run; within what two seeds of the slow way differ by."""
    law = fit_law(published(), ["batch"])
    for left, place in zip(leave_one_out(law, 1e5), law.places):
        slow = fit_law([one for one in law.places if one is not place], ["batch"], seed=7).forecast(place.at, 1e5)
        assert abs(left.forecast.value - slow.value) < 0.03
        np.testing.assert_allclose(left.forecast.interval, slow.interval, atol=0.05)


@pytest.mark.slow
def test_a_short_run_borrows_from_the_law() -> None:
    rng, items = np.random.default_rng(1), []
    for index, batch in enumerate((256, 512, 1024, 2048, 4096)):
        compute = np.arange(31) / 30 * (1.2 if batch == 4096 else 8.0)
        clean = rate(compute, R0=0.3, A=0.6 + 0.02 * index, B=1.8, C_mid=1.0)
        points = rng.binomial(4000, clean) / 4000
        item = curve(compute, points, np.sqrt(clean * (1 - clean) / 4000), run=f"batch {batch}")
        items.append(analyse(replace(item, places={"batch": float(batch)})))
    law = law_of(items, ["batch"])
    own, joined = items[-1].draws().sigmoid.parameters()["A"], readable(law.theta_MSJ[:, -1])[:, 1]
    low, high = np.quantile(joined, [0.1, 0.9])
    assert low < 0.68
    assert high > 0.68
    assert high - low < 0.7 * np.ptp(np.quantile(own, [0.1, 0.9]))


def test_the_worth_of_a_look_is_that_of_simulated_looks() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(0, 0.03, (4, 4))
    mean, cov, error = np.array([0.6, 0.61, 0.58, 0.62]), root @ root.T, 0.01
    found = knowledge_gradient(mean, cov, error)
    for pick in range(4):
        seen = rng.normal(mean[pick], np.sqrt(cov[pick, pick] + error**2), 200_000)
        after = mean + np.outer(seen - mean[pick], cov[:, pick] / (cov[pick, pick] + error**2))
        assert found[pick] == pytest.approx(after.max(1).mean() - mean.max(), abs=2e-4)


@pytest.mark.slow
def test_a_budget_goes_where_it_may_change_the_choice() -> None:
    law = fit_law(published(), ["batch", "length", "active"])
    found = allocate(law, grid_of(law.places, law.axes), 1e5, 50_000, 16_000)
    assert 1 <= len(found) <= 3
    assert all(one.at["active"] == 17e9 and one.gain > 0 for one in found)
    assert "forecast as" in found[0].reason


@pytest.mark.slow
def test_a_place_has_the_same_numbers_wherever_they_are_printed() -> None:
    """Proposals show what the law forecasts, of places that were run and of others."""
    law = fit_law(published(), ["batch", "length", "active"])
    ran, new = dict(law.places[2].at), {"batch": 4096.0, "length": 32_000.0, "active": 17e9}
    found = allocate(law, [ran, new], 1e5, 16_000, 16_000) + allocate(law, [dict(law.places[3].at), ran], 1e5, 1e5, 1e4)
    assert {tuple(one.at.values()) for one in found} >= {tuple(new.values())}
    for one in found:
        said = law.forecast(one.at, 1e5)
        assert (one.value, one.interval) == (said.value, said.interval)
        assert f"forecast as {said.value:.3f} [{said.interval[0]:.3f}, {said.interval[1]:.3f}]" in one.reason
    own = np.median(readable(law.theta_MSJ[:, 2])[:, 1])
    assert law.forecast(ran, 1e5).parameters["A"] == own, "a place that was run has its own curve"
    assert law.forecast(ran, 1e5, own=False).parameters["A"] != own


def test_no_run_stands_for_another_at_its_place() -> None:
    first, *others = published()
    law = fit_law([first, *others, replace(first, name="again")], ["batch", "length", "active"])
    by_law, at_place = law.forecast(first.at, 1e5, own=False), law.forecast(first.at, 1e5)
    assert (at_place.value, at_place.interval) == (by_law.value, by_law.interval)
    left = leave_one_out(law, 1e5)[0].forecast
    assert left.interval[1] - left.interval[0] > 0.01, "that of the law, not of the other run"


@pytest.mark.parametrize(
    ("places", "axes", "says"),
    [
        (published()[:2], ["batch"], "all runs have the same batch"),
        (published(), [], "a law needs an axis"),
        ([replace(published()[0], at={"mix": 0.0}), replace(published()[1], at={"mix": 0.5})], ["mix"], "--linear mix"),
    ],
)
def test_a_law_that_cannot_be_learnt_is_refused_in_one_line(places: list[Place], axes: list[str], says: str) -> None:
    with pytest.raises(LabError, match=says):
        fit_law(places, axes)


def test_fits_without_a_posterior_have_no_law() -> None:
    compute = np.arange(1, 20) / 4
    item = analyse(curve(compute, rate(compute, R0=0.3, A=0.6, B=1.8, C_mid=1.0)), None)
    assert place_of(item, {"batch": 1.0}).end == compute[-1]
    with pytest.raises(LabError, match="--method joint"):
        place_of(replace(item, curves=None), {"batch": 1.0})


def of_batches(path: Path, *batches: int) -> Path:
    """A table with a run of each batch, up to a compute of 7.5."""
    rows, rng = ["run,compute,pass_rate,n,batch"], np.random.default_rng(0)
    for batch in batches:
        for step in range(16):
            clean = float(rate(np.array([step / 2.0]), R0=0.3, A=0.6 + batch / 1e5, B=1.8, C_mid=1.0)[0])
            rows.append(f"b{batch},{step / 2},{rng.binomial(2000, clean) / 2000},2000,{batch}")
    path.write_text("\n".join(rows))
    return path


@pytest.mark.slow
def test_a_budget_that_pays_for_no_run_says_what_one_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["law", str(of_batches(tmp_path / "runs.csv", 256, 4096)), "--axis", "batch", "--budget", "7"]
    assert main(line) == 0
    assert "\nthe budget pays for no run: one takes 7.5 compute (--per-run)\n" in capsys.readouterr().out
    assert main([*line, "--per-run", "20", "--json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)["tasks"].values()
    assert answer["next"] == []
    assert "one takes 20" in answer["no_next"]
    assert main([*line, "--per-run", "6"]) == 0
    assert "pays for no run" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_reads_axes_of_a_table_and_of_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, places = of_batches(tmp_path / "runs.csv", 256, 1024, 4096), tmp_path / "places.csv"
    places.write_text("run,lr\nb256,1e-4\nb1024,2e-4\nb4096,4e-4\n")
    line = ["law", str(table), "--axis", "batch", "--at", "16", "--predict", "batch=2048", "--budget", "16"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("batch doubled", "batch 2,048", "left out"))
    assert main([*line, "--json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)["tasks"].values()
    assert len(answer["left_out"]) == 3
    assert 0 < answer["forecasts"][0]["value"] < 1
    assert main(["law", str(table), "--axis", "lr", "--places", str(places)]) == 0
    assert "lr doubled" in capsys.readouterr().out
    assert main(["law", str(table), "--axis", "length"]) == 1
    assert "no length is known" in capsys.readouterr().err
    assert main(["law", str(table), "--axis", "batch", "--predict", "batch=many"]) == 1
    assert "write it as NAME=X" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--axis", "batch"], "--axis batch is given twice"),
        (["--linear", "length"], "--linear length: it is no axis"),
        (["--at", "0"], "cannot forecast at a compute of 0"),
        (["--budget", "-5"], "--budget -5 cannot be spent"),
        (["--budget", "5", "--per-run", "nan"], "--per-run nan cannot be spent"),
        (["--predict", "batch=-4"], "batch -4 has no logarithm"),
    ],
)
def test_mistakes_are_told_before_anything_is_fitted(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = "".join(f"b{batch},{batch},{c},0.5\n" for batch in (1, 2) for c in range(5))
    (tmp_path / "flat.csv").write_text("run,batch,compute,pass_rate\n" + flat)
    assert main(["law", str(tmp_path / "flat.csv"), "--axis", "batch", *argv]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


CONFIG = """
# of a run
Run.model = @Llama4Text()
Run.tasks = (@MathMiniature(), @CodeMiniature())
Run.task_weights = ({math}, {code})
Run.seed = 3
Llama4Text.hidden_size = 128
Llama4Text.num_local_experts = 8
Llama4Text.num_hidden_layers = {layers}
Llama4Text.rope_scaling = None
Recipe.prompts_per_step = 8
Recipe.generations_per_prompt = 16
Recipe.max_tokens = 104
"""


def test_active_parameters_and_the_mixture_are_those_of_the_configuration() -> None:
    found = config_axes(settings_in(CONFIG.format(math=3.0, code=1.0, layers=6), "config.gin"), ["math", "code"])
    counted = parameters(Llama4Text(hidden_size=128, num_local_experts=8, num_hidden_layers=6).to_hf())
    assert (found["active"], found["parameters"]) == (counted.active, counted.total)
    assert (found["share_math"], found["share_code"]) == (0.75, 0.25)
    assert (found["batch"], found["length"], found["generations"]) == (128, 104, 16)


@pytest.mark.parametrize(
    "line",
    [
        "Run.model = @os.system()",
        "Run.model = @Nothing()",
        "Llama4Text.num_hidden_layers = 1000000000",
        "Llama4Text.hidden_size = -1",
        "Run.task_weights = 5",
        "Run.task_weights = ('a', None)",
        "Run.task_weights = (1e999, 1.0)",
    ],
)
def test_a_configuration_that_makes_no_sense_gives_no_axis_and_no_error(line: str) -> None:
    settings = settings_in(f"{CONFIG.format(math=1.0, code=1.0, layers=4)}{line}\n", "config.gin")
    found = config_axes(settings, ["math", "code"])
    assert all(np.isfinite(number) for number in found.values())
    missing = "share_math" if "weights" in line else "active"
    assert missing not in found


@pytest.mark.parametrize(
    ("tasks", "weights", "shares"),
    [
        (("@A()", "@B()"), None, (0.5, 0.5)),
        (("@A()", "@B()"), (1, 3.0), (0.25, 0.75)),
        (("@A()", "@B()"), (0, 1), None),
        (("@A()", "@B()"), (-1.0, 2.0), None),
        (("@A()", "@B()"), (1e300, 1.0), None),
        (("@A()", "@B()"), ("1", 1.0), None),
        (("@A()", "@B()"), (1.0,), None),
        (("@A()", "@B()"), "half", None),
        (("@A()",), None, None),
        ((), None, None),
        ("@A()", None, None),
    ],
)
def test_shares_of_tasks_are_those_of_weights_that_make_sense(
    tasks: Any, weights: Any, shares: tuple[float, float] | None
) -> None:
    found = config_axes({"Run.tasks": tasks, "Run.task_weights": weights}, ["math", "code"])
    assert found == (dict(zip(("share_math", "share_code"), shares)) if shares else {})


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.gin").write_text("Recipe.max_tokens = (((((\n")
    [found] = read_sources([write_evals(tmp_path)])
    assert (dict(found.places), found.recipe) == ({}, "")
    assert "gives no axes" in found.notes[0]


def test_seeds_of_one_recipe_are_known_by_their_settings_not_by_their_text(tmp_path: Path) -> None:
    texts = {
        "a": "Run.seed = 1\nOptimizerConfig.lr = 1e-3\nRecipe.max_tokens = 100",
        "b": "# another\nRun.seed = 2\nRecipe.max_tokens = 100\nOptimizerConfig.lr = 0.001  # file:3",
        "c": "Run.seed = 1\nOptimizerConfig.lr = 2e-3\nRecipe.max_tokens = 100",
    }
    for name, text in texts.items():
        (write_evals(tmp_path / name, 0.01 * ord(name)) / "config.gin").write_text(text)
    pooled, notes = pool_seeds([item for name in texts for item in read_sources([tmp_path / name])])
    assert [len(item.seeds) for item in pooled] == [2, 1]
    assert notes == ["a, b differ in their seed alone and were pooled as a"]


def write_evals(folder: Path, above: float = 0.0) -> Path:
    """A run folder with three evaluations and nothing else."""
    folder.mkdir(exist_ok=True)
    lines = [
        {"step": step, "task": "math", "compute": float(step), "pass_rate": (0.3 + 0.1 * step + above) % 1}
        for step in (1, 2, 3)
    ]
    (folder / "evals.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.mark.slow
def test_the_command_takes_the_mixture_from_run_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for share in (1.0, 3.0, 9.0):
        folder = tmp_path / f"mix_{share:g}"
        folder.mkdir()
        (folder / "config.gin").write_text(CONFIG.format(math=share, code=1.0, layers=4 + int(share)))
        (folder / "manifest.json").write_text(json.dumps({"held_out": {"math": 100, "code": 100}}))
        records = []
        for step in range(16):
            clean = float(rate(np.array([step / 2.0]), R0=0.3, A=0.6 + share / 100, B=1.8, C_mid=1.0)[0])
            record = {"step": step, "compute": step / 2, "compute_unit": "core-hours", "task": "math"}
            records.append(json.dumps(record | {"n": 2000, "pass_rate": rng.binomial(2000, clean) / 2000}))
        (folder / "evals.jsonl").write_text("\n".join(records))
    folders = [str(folder) for folder in sorted(tmp_path.iterdir())]
    line = ["law", *folders, "--axis", "share_math", "--axis", "active", "--linear", "share_math", "--json"]
    assert main(line) == 0
    [answer] = json.loads(capsys.readouterr().out)["tasks"].values()
    assert len(answer["left_out"]) == 3
