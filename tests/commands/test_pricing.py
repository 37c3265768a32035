"""Finished runs priced under another cluster: their steps, at what a step costs there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.commands.pricing import parse_price, priced, step_price
from scalelab.curves import read_sources
from scalelab.errors import LabError

ROOT = Path(__file__).parents[2]
SCHEDULES = [str(ROOT / "docs/schedules" / name) for name in ("synchronous", "pipeline_8")]


def test_prices_are_steps_times_the_simulated_hours_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *SCHEDULES, "--price", "h100", "--task", "math"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"run +task +after 150 steps +steps, as run +steps an hour there +H100-hours a step", out)
    for source in SCHEDULES:
        curves = read_sources([source])
        curve = next(item for item in curves if item.task == "math")
        price = step_price(curves, "h100", {})
        np.testing.assert_allclose(priced(curve, price).compute_N, curve.other_N["step"] * price.hours)
        line = rf"{curve.run} +math +0\.\d+ +[\d.]+ a GPU-hour +{price.steps_per_hour:,.0f} +{price.hours:.4g}"
        assert re.search(line, out)
    assert main(["compare", *SCHEDULES, "--price", "h100", "--task", "math", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    words = found["price_bands"]["math"]["pipeline_8"]
    [row] = [row for row in found["rows"]["math"] if row["run"] == "pipeline_8"]
    assert words["as"] == row["verdict"]
    assert f"pipeline_8: {', '.join(words.values())}." in " ".join(out.split())


def test_a_faster_device_makes_a_step_cheaper_and_a_slower_trainer_dearer() -> None:
    curves = read_sources([SCHEDULES[1]])
    h100, a100 = (step_price(curves, device, {}) for device in ("h100", "a100"))
    slow = step_price(curves, "h100", {"train_token_seconds": 1.0})
    assert h100.hours < a100.hours < slow.hours
    assert slow.seconds > h100.seconds


def test_measured_rates_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rates.json").write_text('{"device": "a100", "train_token_seconds": 0.5}')
    assert parse_price(str(tmp_path / "rates.json")) == ("a100", {"train_token_seconds": 0.5})
    assert main(["fit", SCHEDULES[0], "--price", str(tmp_path / "rates.json"), "--json"]) == 0
    assert {item["unit"] for item in json.loads(capsys.readouterr().out)["fits"] if "unit" in item} <= {"A100-hours"}
    for text, reason in (("{}", "write it as"), ('{"device": "tpu"}', "'tpu'"), ('{"device": "h100", "x": 1}', "'x'")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(LabError, match=reason):
            parse_price(str(tmp_path / "bad.json"))
    with pytest.raises(LabError, match="no file, and no device; did you mean 'h100'"):
        parse_price("h10")


def test_what_has_no_configuration_has_no_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("step,pass_rate\n" + "".join(f"{at},{at / 20}\n" for at in range(12)))
    assert main(["fit", str(tmp_path / "t.csv"), "--price", "h100"]) == 1
    assert "--price needs the configuration of a run folder" in capsys.readouterr().err
    shutil.copytree(SCHEDULES[0], tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key != "mean_length"} for line in lines]
    (tmp_path / "run" / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert main(["fit", str(tmp_path / "run"), "--price", "h100"]) == 1
    assert "needs completions, tokens and lengths" in capsys.readouterr().err


def test_a_run_of_a_single_step_has_a_pace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SCHEDULES[0], tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").read_text().splitlines()]
    kept = [{**line, "step": line["step"] // 10, "compute": line["step"] / 40} for line in lines if line["step"] <= 10]
    (tmp_path / "run" / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert main(["fit", str(tmp_path / "run"), "--price", "h100"]) == 1, "two evaluations carry no curve"
    assert re.search(r"run +math +0\.\d+ +4 a GPU-hour", capsys.readouterr().out)
