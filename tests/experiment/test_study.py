"""The miniature study: nothing is left out of it, and its tables name every run that lies in it."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from scalelab.curves import curve
from scalelab.experiment import resolve

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "docs" / "study"


def runs() -> list[Path]:
    return sorted(path.parent for path in (STUDY / "runs").glob("*/*/seed_*/manifest.json"))


def test_every_run_of_the_study_is_whole_finished_and_in_the_table() -> None:
    readme = (STUDY / "README.md").read_text()
    for run in runs():
        assert json.loads((run / "manifest.json").read_text())["status"] == "finished"
        assert f"| {run.relative_to(STUDY / 'runs').as_posix()} |" in readme
        assert (run / "evals.jsonl").read_text().endswith("\n")
        assert (run / "config.gin").is_file()
    assert f"| {len(runs())} runs |" in readme


def bindings(config: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w./]+) = (.*)$", config, re.M))


def test_the_study_ran_the_recipes_that_the_lab_has_today() -> None:
    for run in runs():
        family, member, seed = run.relative_to(STUDY / "runs").parts
        recorded = bindings((run / "config.gin").read_text())
        today = bindings(resolve(f"{family}/{member}", [f"Run.seed={seed.removeprefix('seed_')}"]).config_gin())
        shared = {key for key in recorded.keys() & today.keys() if key.startswith("Recipe.")}
        assert {"Recipe.loss", "Recipe.prompts_per_step"} <= shared
        for key in (*shared, "Run.schedule", "Run.model", "Run.tasks", "Run.seed"):
            assert recorded[key] == today[key], (run, key)


def test_runs_are_compared_seed_by_seed_and_only_by_seeds_that_all_have() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "study.py"))
    compute = [0, 1, 2, 3, 4]
    one = curve(compute * 2, [0.2, 0.5, 0.6, 0.7, 0.8, 0.3, 0.4, 0.5, 0.6, 0.9], seed=["0"] * 5 + ["1"] * 5)
    other = curve(compute, [0.2, 0.5, 0.7, 0.8, 0.8], seed=["1"] * 5)
    assert tool["shared_seeds"]([one, other]) == ["1"]
    assert tool["of_seeds"](one, ["1"]).pass_rate_N.max() == 0.9
    np.testing.assert_allclose(tool["seen_before"](one, 4.0), [0.8, 0.9])
    np.testing.assert_allclose(tool["seen_before"](one, 3.9), [0.7, 0.6])
    assert tool["difference"](np.array([0.125])) == "+0.125"
    mean, error = (float(part) for part in tool["difference"](np.array([0.1, 0.2, 0.6])).split(" ± "))
    assert mean == pytest.approx(0.3)
    assert error == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5, abs=1e-3)
