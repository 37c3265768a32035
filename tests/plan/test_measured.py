"""A run's own steps replace the assumptions of a plan, so that the plan of that run has the run's speeds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalelab import cli
from scalelab.commands.plan import measured_of
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.plan.check import usual
from scalelab.plan.lengths import lengths_of
from scalelab.plan.measured import FEWEST, SETTLED, measured_speeds
from scalelab.plan.speed import Assumptions, decoding
from scalelab.schedule.schedule import PipelineRL, PPOOffPolicy, Synchronous
from scalelab.store.lines import read_lines

RECORDED = Path(__file__).parents[2] / "scalelab" / "recorded" / "scalerl" / "seed_1"


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return read_lines(RECORDED / "metrics.jsonl")


@pytest.fixture(scope="module")
def run() -> Any:
    return resolve(str(RECORDED / "config.gin")).run


def test_a_runs_clock_is_found_again_in_what_it_measured(run: Any, records: list[dict[str, Any]]) -> None:
    """The recorded run took its durations from a model that left prompts out, and engine and trainer really worked."""
    found = measured_speeds(run, records, device(usual(run)), Assumptions())
    length = lengths_of(run, found.assumed.sigma, found.assumed.median).moments()
    engine = decoding(run.model.to_hf(), run.generator_setup, 1e9, length, device(usual(run)), found.assumed)
    assert found.training == pytest.approx(1, rel=0.05)
    assert found.decoding == pytest.approx(1 - engine.prefill / engine.seconds, rel=0.05)


def test_engines_are_measured_against_the_sequences_that_their_schedule_gives_them(
    run: Any, records: list[dict[str, Any]]
) -> None:
    """A batch in all where they wait for the trainer, k + 1 where they do not."""
    gpu, found = device(usual(run)), {}
    for schedule in (Synchronous(), PPOOffPolicy(4), PipelineRL(1), PipelineRL(3)):
        asked = replace(run, schedule=schedule, cluster=replace(run.cluster, generators=8))
        found[str(schedule)] = measured_speeds(asked, records, gpu, Assumptions())
    length = lengths_of(run, (one := found["PipelineRL(k=1)"].assumed).sigma, one.median).moments()
    batch, assumed = run.recipe.completions_per_step, replace(Assumptions(), prompt=one.prompt, median=one.median)

    def planned(sequences: float) -> float:
        engine = decoding(run.model.to_hf(), run.generator_setup, sequences / 8, length, gpu, assumed)
        return engine.tokens_per_second

    first, *others = (one.decoding or 0 for one in found.values())
    batches = (planned(many * batch) / planned(batch) for many in (1, 2, 4))
    assert [one / first for one in others] == pytest.approx([*batches], rel=0.02)


def test_slower_steps_make_the_plan_slower_by_as_much(run: Any, records: list[dict[str, Any]]) -> None:
    slower = [
        one
        | {
            "seconds": one["seconds"] | {"step": 2 * one["seconds"]["step"]},
            "time": 3 * one["time"],
            "generator_idle_seconds": 3 * one["generator_idle_seconds"],
        }
        for one in records
    ]
    gpu = device(usual(run))
    once, twice = (measured_speeds(run, lines, gpu, Assumptions()) for lines in (records, slower))
    assert twice.training == pytest.approx(2 * once.training)
    assert twice.decoding == pytest.approx(3 * (once.decoding or 0))
    assert twice.assumed.mfu == pytest.approx(once.assumed.mfu / 2)
    assert twice.assumed.iteration == pytest.approx(3 * once.assumed.iteration)
    again = measured_speeds(run, slower, gpu, twice.assumed)
    assert (again.training, again.decoding) == pytest.approx((1, 1))


def test_a_folder_without_steps_measured_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(RECORDED / "config.gin", tmp_path)
    assert cli.main(["plan", "quickstart", "--like", str(tmp_path)]) == 1
    assert f"{tmp_path} has no metrics.jsonl: --like takes the folder of a run that" in capsys.readouterr().err


def test_the_command_plans_with_what_a_run_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "quickstart", "--like", str(RECORDED)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"measured in steps {SETTLED + 1} to 32 of {RECORDED}: training takes ")
    assert cli.main(["plan", "quickstart", "--like", str(RECORDED), "--mfu", "0.1", "--json"]) == 0
    assumed = json.loads(capsys.readouterr().out)["assumptions"]
    assert assumed["mfu"] == 0.1
    assert assumed["iteration"] != Assumptions().iteration


def test_the_simulator_has_the_speeds_that_a_run_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def simulated(*more: str) -> dict[str, Any]:
        command = ["simulate", str(RECORDED / "config.gin"), "--hours", "0.2", "--no-search", "--no-evaluations"]
        assert cli.main([*command, *more, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    usual_rates, found = simulated()["rates"], simulated("--like", str(RECORDED))
    speeds = measured_of(RECORDED)
    assert found["rates"]["train_token_seconds"] == pytest.approx(
        usual_rates["train_token_seconds"] * speeds.training, rel=0.05
    )
    assert found["rates"]["step_seconds"] == pytest.approx(
        usual_rates["step_seconds"] * (speeds.decoding or 0), rel=0.1
    )
    assert cli.main(["plan", str(RECORDED / "config.gin"), "--like", str(RECORDED), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["seconds"]["step"]
    assert found["split"]["seconds_per_step"] == pytest.approx(planned, rel=0.25)


def test_too_few_steps_and_steps_without_times_are_one_line(run: Any, records: list[dict[str, Any]]) -> None:
    gpu = device(usual(run))
    with pytest.raises(LabError, match=f"needs {FEWEST} steps behind the first {SETTLED}, and it has 4: wait"):
        measured_speeds(run, records[: SETTLED + 4], gpu, Assumptions())
    empty = [one | {"tokens": 0} for one in records]
    wrongs: list[list[dict[str, Any]]] = [[{"step": 1}] * 20, [{}], [{"step": "x"}], empty, [{"tasks": 3}]]
    for wrong in wrongs:
        with pytest.raises(LabError, match="a plan"):
            measured_speeds(run, wrong, gpu, Assumptions())
