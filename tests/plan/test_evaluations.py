"""Evaluations in the plan: what they cost is said, and those that a budget has no room for are refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.plan.driver import driver_cores
from scalelab.plan.evaluations import evaluation_cost
from scalelab.plan.lengths import Moments
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of
from scalelab.plan.speed import Assumptions, decoding
from scalelab.run.config import Run
from scalelab.schedule.schedule import PipelineRL

LEAST = "h100/scalerl_17bx16_least"
"""A run with one engine, for whose evaluations the trainer waits."""


def experiment(name: str, *sets: str) -> Run:
    return resolve(name, list(sets)).run


@pytest.mark.parametrize("engines", [0, 8])
def test_an_evaluation_takes_as_long_as_engines_that_decode_it_batch_by_batch(engines: int) -> None:
    run, gpu, assumed = experiment("h100/scalerl_8b", f"Evaluation.engines={engines}"), device("h100"), Assumptions()
    plan = plan_of(run, placement(run), gpu, assumed)
    cost, used = plan.evaluation, engines or plan.placement.engines
    assert (cost.engines, cost.completions) == (used, sum(one.planned for one in run.sets))
    # every engine's queue, place by place: a completion of mean length takes the first place that is free
    hf, length = run.model.to_hf(), run.recipe.max_tokens * 0.6
    engine = decoding(hf, plan.placement.generator, cost.completions / used, _moments(length), gpu, assumed)
    places = [0.0] * int(engine.sequences)
    for _ in range(cost.completions // used):
        first = places.index(min(places))
        places[first] += length * engine.seconds
    exact = evaluation_cost(run, plan.placement, _moments(length), gpu, assumed)
    assert exact.seconds == pytest.approx(max(places), rel=0.3)
    devices = used if engines else plan.placement.devices
    assert cost.device_hours == pytest.approx(cost.seconds * devices / 3600)


def _moments(length: float) -> Moments:
    return Moments(length, length**2, int(length))


def test_more_engines_evaluate_sooner_and_hold_more_devices() -> None:
    run, gpu = experiment("h100/scalerl_8b"), device("h100")
    four, eight = (
        plan_of(replace(run, evaluation=replace(run.evaluation, engines=n)), placement(run), gpu, Assumptions())
        for n in (4, 8)
    )
    assert eight.evaluation.seconds < 0.6 * four.evaluation.seconds


def test_an_evaluation_beyond_the_budget_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", LEAST]) == 0
    assert "does not run" not in capsys.readouterr().out
    few = ["--set", "Budget.hours=50"]
    assert main(["plan", LEAST, *few]) == 1
    out = capsys.readouterr().out
    refusal = r"an evaluation of 4,480 completions takes (\d+) device-hours, and the budget is 50: take fewer"
    assert re.search(f"does not run: {refusal}", out)
    assert "fits on" not in out, "no other placement mends it"
    assert main(["launch", "slurm", LEAST, "--out", "/runs/x", "--set", "SFT.pretrained=/models/x", *few]) == 1
    captured = capsys.readouterr()
    assert re.search(refusal, captured.err)
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert main(["simulate", LEAST, "--hours", "5", "--no-search", *few]) == 1
    assert re.search(f"split does not run: {refusal}", capsys.readouterr().out)
    assert main(["simulate", LEAST, "--hours", "5", "--no-search", "--no-evaluations", *few]) == 0


def test_evaluations_that_cannot_keep_up_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "h100/scalerl_8b"]) == 0
    assert "is then made later" not in capsys.readouterr().out
    assert main(["plan", "h100/scalerl_8b", "--set", "Evaluation.every=10"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    said = re.search(r"takes ([\d,]+) s of 16 of 64 engines, as long as (\d+) steps, and the next is due after 10", out)
    assert said is not None
    assert int(said[2]) > 10


@pytest.mark.slow
def test_a_single_engine_that_evaluates_takes_the_time_that_the_plan_says(capsys: pytest.CaptureFixture[str]) -> None:
    """It has nobody to set aside: it keeps its weights, and training waits for it."""
    many = ["--set", "HeldOut.samples=16"]
    assert main(["plan", LEAST, *many, "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["seconds"]
    assert main(["simulate", LEAST, *many, "--no-search", "--hours", "300", "--json"]) == 0
    split = json.loads(capsys.readouterr().out)["split"]
    assert split["evaluations"] > 2
    assert split["seconds_per_step"] == pytest.approx(seconds["step"], rel=0.05)
    assert split["seconds_per_step"] > 1.1 * (seconds["step"] - seconds["evaluations"])


def test_an_evaluation_that_is_due_before_the_last_is_over_costs_no_more_than_can_be_made() -> None:
    run, gpu = experiment("h100/scalerl_8b"), device("h100")
    often = replace(run, evaluation=replace(run.evaluation, samples=6400, every=10))
    usual, busy = (plan_of(one, placement(run), gpu, Assumptions()) for one in (run, often))
    assert busy.evaluation.completions > 100 * usual.evaluation.completions
    made = busy.evaluation.completions / busy.evaluation.seconds  # a second, without end
    assert busy.driver <= 1.05 * driver_cores(768 / busy.seconds["step"] + made)
    assert busy.seconds["step"] == pytest.approx(usual.seconds["step"], rel=0.05)


def test_a_trainer_stands_still_where_all_engines_keep_their_weights_for_longer_than_it_may_be_ahead() -> None:
    gpu, plain = device("h100"), experiment("h100/scalerl_8b", "Evaluation.engines=0")
    plan = plan_of(plain, placement(plain), gpu, Assumptions())
    step, every = plan.seconds["step"] - plan.seconds["evaluations"], 100
    assert isinstance(plain.schedule, PipelineRL)
    assert plain.schedule.k == 8
    assert plan.seconds["evaluations"] == pytest.approx((plan.evaluation.seconds - 8 * step) / every, rel=1e-6)
    short = experiment("h100/scalerl_8b", "Evaluation.engines=0", "Evaluation.samples=1")
    assert plan_of(short, placement(short), gpu, Assumptions()).seconds["evaluations"] == pytest.approx(0, abs=0.02)
