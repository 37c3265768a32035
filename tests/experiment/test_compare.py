"""Families compared out of the box: fabricated runs of known curves, laid out as a sweep leaves them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.experiment import load
from scalelab.report import write_report
from scalelab.sweep.members import members
from tests.helpers.curve_points import rate


def fabricate(root: Path, family: str, asymptotes: Mapping[str, float], seeds: list[int], noise: float = 0.004) -> Path:
    """Runs of some members of a family whose math and code curves have the given A, code 0.1 below math."""
    chosen = {name: e for name, e in load(family).items() if name.rpartition("/")[2] in asymptotes}
    for member in members(family, chosen, (), seeds, root / family):
        member.path.mkdir(parents=True)
        A = asymptotes[member.resolved.name.rpartition("/")[2]]
        rng = np.random.default_rng([ord(letter) for letter in member.name])
        lines = []
        for step in range(0, 151, 10):
            for task, lower in (("math", 0.0), ("code", 0.1)):
                at = rate(step / 100, R0=0.2, A=A - lower, B=2.0) + noise * rng.standard_normal()
                begin = {"step": step, "version": step, "compute": step / 100, "compute_unit": "core-hours"}
                by_role = {"compute_by_role": {"generator": step / 100}}
                lines.append({**begin, **by_role, "task": task, "n_prompts": 1000, "k": 16, "pass_rate": float(at)})
        (member.path / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (member.path / "config.gin").write_text(member.resolved.config_gin())
        (member.path / "manifest.json").write_text(json.dumps({"status": "finished", "seed": member.resolved.run.seed}))
    return root / family


@pytest.mark.slow
def test_a_family_is_ranked_by_task_with_its_seeds_pooled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = {"loss": 0.80, "fp32_head": 0.55, "schedule": 0.70}
    folder = fabricate(tmp_path, "leave_one_out_miniature", truth, seeds=[0, 1])
    fabricate(tmp_path, "recipes_miniature", {"scalerl": 0.9}, seeds=[0])
    sources = [str(tmp_path / "recipes_miniature"), str(folder)]
    assert main(["compare", *sources, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]
    for task, lower in (("math", 0.0), ("code", 0.1)):
        assert [entry["run"] for entry in found[task]] == ["scalerl", "loss", "schedule", "fp32_head"]
        assert [entry["seeds"] for entry in found[task]] == [1, 2, 2, 2]
        for entry in found[task][1:]:
            assert entry["A"] == pytest.approx(truth[entry["run"]] - lower, abs=0.03)
            assert entry["beats"]["scalerl"] < 0.05


@pytest.mark.slow
def test_the_report_of_a_family_shows_its_axes(tmp_path: Path) -> None:
    truth = {"base": 0.7, "batch_88": 0.65, "batch_344": 0.8, "length_56": 0.6, "model_dense": 0.5}
    folder = fabricate(tmp_path, "axes_miniature", truth, seeds=[0])
    page = write_report([folder], tmp_path / "report.html").read_text()
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert inside is not None
    axes = {axis["name"]: axis["points"] for axis in json.loads(inside[1])["overview"]["axes"]}
    assert set(axes) == {"completions per step", "tokens per completion"}
    along = axes["completions per step"]
    assert sorted({point["at"] for point in along}) == [88, 128, 344]
    assert "model_dense" not in {point["run"] for point in along}
