"""Runs with portable arithmetic: the bytes of a short one are those that another kind of processor made."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.virtual.cluster import check_simulated
from tests.helpers.processors import printed, simulated_processor

RUN = "2ffec062e0effb6de69fa4d4678526b685a6783cdda5ffa946f78dec52fc9a5d"
"""SHA-256 of `FIELDS` in `evals.jsonl` and `metrics.jsonl`, made on an Intel Xeon with AVX-512."""
FIELDS = ("step", "task", "pass_rate", "mean_length", "loss", "grad_norm", "entropy", "kl", "ratio_max", "gap_mean")
ROOT = Path(__file__).parents[2]
SHORT = (
    *("Virtual.portable=True", "Budget.steps=3", "Evaluation.prompts=8", "Evaluation.samples=2"),
    *("Recipe.prompts_per_step=8", "PipelineRL.k=2", "Evaluation.every_hours=100.0"),
)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_run_has_the_bytes_that_another_processor_made(tmp_path: Path) -> None:
    """Half a minute, as engine, trainer and verifiers are real. Another processor is shown where that can be done."""
    sets = [word for setting in SHORT for word in ("--set", setting)]
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scalelab", "run", "study/scalerl", *sets, "--out", str(out)]
    printed(command, simulated_processor(tmp_path) or {}, 800)
    texts = [(out / name).read_text() for name in ("evals.jsonl", "metrics.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    made = json.dumps([[line.get(field) for field in FIELDS] for line in lines]).encode()
    assert json.loads((out / "manifest.json").read_text())["arithmetic"] == "portable"
    assert hashlib.sha256(made).hexdigest() == RUN
    [checkpoint] = (out / "checkpoints").glob("step_*")
    again = [sys.executable, "-m", "scalelab", "eval", str(checkpoint), "--prompts", "16", "--k", "2", "--json"]
    assert printed(again, {}, 400) == printed(again, simulated_processor(tmp_path) or {}, 400), "an evaluation of it"


@pytest.mark.parametrize("python", [["-u", "-X", "utf8", "-m", "scalelab"], ["-mscalelab"]])
def test_a_fine_tuning_starts_anew_whatever_options_its_interpreter_has(tmp_path: Path, python: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys; print(sys.orig_argv, 'MKL_CBWR' in os.environ)")
    beside = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    words = ["sft", "study/scalerl", "--set", "Virtual.portable=True", "--out", str(tmp_path)]
    command = [sys.executable, *python, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | beside)
    first, second = done.stdout.splitlines()
    assert second == first.replace("False", "True")


def test_a_run_that_starts_anew_for_portable_arithmetic_still_tells_its_parent_why_it_fails(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("not a run")
    command = [sys.executable, "-m", "scalelab", "run", "study/scalerl", "--set", "Virtual.portable=True"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    [said] = done.stderr.splitlines()
    assert done.returncode == 1, said
    assert f"{tmp_path} exists and is not empty" in said
    assert kept.read_text() == "not a run"


def test_portable_arithmetic_is_refused_in_a_process_that_began_without() -> None:
    run = resolve("study/scalerl", ["Virtual.portable=True"]).run
    with pytest.raises(LabError, match="use `scalelab run`"):
        check_simulated(run, Path("runs/none"), {})
