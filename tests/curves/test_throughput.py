"""Hours that say nothing of a recipe: of a busy machine, of a pause, of another device."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.cli import main
from scalelab.reading import read_sources
from scalelab.reading.curve import curve
from scalelab.reading.throughput import slow_stretch, throughputs
from tests.helpers.curve_points import rate

STEPS = np.arange(0, 210, 10)


def write_run(folder: Path, hours_per_step: float, *, clock: str = "wall", A: float = 0.7, pause: float = 0.0) -> Path:
    """A run on a CPU whose every step trains on 6,400 tokens, and that may stand still after step 100."""
    folder.mkdir()
    hours = STEPS * hours_per_step + pause * (STEPS > 100)
    rates = rate(STEPS / 200, A=A) + 0.003 * np.random.default_rng(0).standard_normal(len(STEPS))
    records = [
        {"step": int(s), "compute": float(c), "compute_unit": "core-hours", "task": "math", "pass_rate": float(r),
         "stderr": 0.004, "completions": 64 * int(s), "tokens": 6400 * int(s)}
        for s, c, r in zip(STEPS, hours, rates)
    ]  # fmt: skip
    (folder / "evals.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "manifest.json").write_text(json.dumps({"clock": clock, "seed": 0}))
    return folder


def test_a_busy_machine_makes_no_recipe_better_and_the_axis_that_holds_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, busy = write_run(tmp_path / "quiet", 0.001), write_run(tmp_path / "busy", 0.009)
    hours = ("--column", "compute=compute")
    assert main(["compare", str(quiet), str(busy), *hours]) == 1
    reason = capsys.readouterr().err
    assert "quiet trained on 6,400,000 tokens in one, busy on 711,111" in reason
    assert reason.strip().endswith("--column compute=tokens")
    assert main(["compare", str(quiet), str(write_run(tmp_path / "fast", 0.0011)), *hours]) == 0


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(0, 1))
def test_no_load_and_no_pause_moves_the_curve_of_a_run_on_cores(one: float, other: float, pause: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        read = [
            read_sources([write_run(Path(folder) / name, hours, pause=wait)])[0]
            for name, hours, wait in (("one", one, 0.0), ("other", other, pause))
        ]
    assert [item.unit for item in read] == ["tokens", "tokens"]
    np.testing.assert_array_equal(read[0].compute_N, 6400.0 * STEPS)
    np.testing.assert_array_equal(read[1].compute_N, read[0].compute_N)
    assert slow_stretch(read[1]) == ""


def test_a_window_in_hours_is_one_in_tokens(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0.001)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"fit_window": [0.055, None]}))
    assert read_sources([folder])[0].fit_window == (pytest.approx(55 * 6400), None)
    (folder / "manifest.json").write_text(json.dumps(manifest | {"fit_window": ["0.05", {}]}))
    assert read_sources([folder])[0].fit_window == (pytest.approx(50 * 6400), None)


def test_hours_of_a_simulated_clock_are_compared_whatever_their_work(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, hours, clock="virtual") for name, hours in (("a", 0.001), ("b", 0.009))]
    assert main(["compare", *map(str, runs)]) == 0


def test_a_pause_is_named_by_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", str(write_run(tmp_path / "paused", 0.001, pause=0.25)), "--column", "compute=compute"])
    assert "from 0.1 to 0.36 core-hours a step took 26 times what it usually does" in capsys.readouterr().out
    main(["fit", str(write_run(tmp_path / "steady", 0.001)), "--column", "compute=compute"])
    assert "a step took" not in capsys.readouterr().out


@given(st.lists(st.integers(1, 1000), min_size=4, max_size=12), st.floats(0.01, 100))
def test_throughput_is_the_work_over_the_hours(steps: list[int], hours: float) -> None:
    done = np.cumsum(steps).astype(float)
    item = curve(done * hours, np.linspace(0, 1, len(done)), unit="core-hours")
    item.other_N.update({"step": done, "tokens": 100 * done})  # type: ignore[attr-defined]
    [found] = throughputs(item)
    assert found.steps == pytest.approx(1 / hours)
    assert found.tokens == pytest.approx(100 / hours)
    assert np.isnan(found.completions)
    assert slow_stretch(item) == ""


def test_the_slowest_stretch_of_two_alike_is_that_of_the_first_seed() -> None:
    hours = np.array([0.0, 1.0, 2.0, 10.0, 11.0])
    item = curve([*hours, *(8 + hours)], [0.5] * 10, seed=[0] * 5 + [1] * 5, unit="core-hours")
    item.other_N["step"] = np.searchsorted(hours, item.compute_N - 8 * item.seed_N).astype(float)  # type: ignore[index]
    assert slow_stretch(item).startswith("from 2 to 10 core-hours a step took 8 times what it usually does")
