"""A plan of many devices, steps or prompts takes seconds, and says one of a thing in the singular."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import moe.train.layout
import scalelab.plan.shape
import scalelab.plan.sizes
from moe.model.architectures import architecture
from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.hardware import Hardware, device
from scalelab.plan import idle
from scalelab.plan.placement import resize
from scalelab.plan.planner import plan_of, propose
from scalelab.plan.prompts import draws
from scalelab.plan.sizes import rank_parameters
from scalelab.plan.speed import Assumptions
from scalelab.recipe.recipe import Recipe
from tasks.procedural import MOST_HELD_OUT, Procedural


def counting(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return function(*args, **kwargs)

    return counted


def test_a_search_reads_a_model_no_more_often_for_more_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of this mixture for 1,000 devices took 43 s of a core, and takes 6."""
    run, read, listed = resolve("h100/scalerl_17bx16").run, list[int](), list[int]()
    run = replace(run, model=replace(run.model, vocab_size=run.model.to_hf()["vocab_size"] + 1024))  # of no other test
    for module in (moe.train.layout, scalelab.plan.shape):
        monkeypatch.setattr(module, "architecture", counting(architecture, read))
    monkeypatch.setattr(scalelab.plan.sizes, "rank_parameters", counting(rank_parameters, listed))
    found = []
    for devices in (64, 192):
        read.clear()
        assert propose(run, Hardware(device("h100"), devices), Assumptions()) is not None
        found.append(len(read))
    assert found[1] < 24 * 8, "a layout of each number of ranks, with each engine, is checked at the end"
    assert len(listed) < 500, "once for each cut of the model, whatever ranks there are"


def test_prompts_of_an_evaluation_that_nobody_wants_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = list[int]()
    monkeypatch.setattr(Procedural, "_draw_from", counting(Procedural._draw_from, drawn))
    assert main(["plan", "quickstart", "--set", f"Evaluation.prompts={MOST_HELD_OUT + 1}"]) == 1
    said = "does not run: task math holds out 20,000 problems at most, 20,001 are asked for: evaluate fewer\n"
    assert said in capsys.readouterr().out
    assert not drawn


def test_another_split_is_looked_for_on_ten_thousand_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "h100/scalerl_8b", "--gpus", "10000"]) == 0
    said = re.search(r"the same devices take ([\d.]+) s a step in place of ([\d.]+) with ", capsys.readouterr().out)
    assert said is not None
    assert float(said[1]) < 0.6 * float(said[2])


@pytest.mark.parametrize(
    ("name", "devices", "worth"), [("h100/scalerl_17bx16", 80, True), ("scalerl_17bx16", 1000, False)]
)
def test_more_engines_are_proposed_only_where_a_step_then_takes_fewer_device_hours(
    name: str, devices: int, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times the devices for two thirds of a step's time were named as a way to keep a trainer busy."""
    monkeypatch.setattr(idle, "propose", lambda *_: None)
    run = resolve(name).run
    kind, place = device(run.cluster.hardware or "gb200"), resize(run, devices)
    plan = plan_of(run, place, kind, Assumptions())
    found = re.findall(r"Cluster.generators=(\d+), ", "".join(idle.idle_notes(run, plan, kind, Assumptions())))
    assert bool(found) == worth
    for engines in map(int, found):
        assert plan_of(run, replace(place, engines=engines), kind, Assumptions()).step_hours < plan.step_hours


def test_draws_of_many_steps_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    run = resolve("quickstart").run
    growing = replace(run, recipe=replace(run.recipe, prompts_at_start=2, prompts_grow_until=7))
    for one in (run, growing):
        for steps in (0, 3, 7, 20):
            each = sum(one.recipe.prompts_at(step) for step in range(steps))
            assert sum(task.drawn for task in draws(one, steps).values()) == pytest.approx(each, abs=1)
    asked = list[int]()
    monkeypatch.setattr(Recipe, "prompts_at", counting(Recipe.prompts_at, asked))
    draws(growing, 10_000)
    assert len(asked) == 7


ONE = re.compile(r"(?<![\d.,])1 (?:devices|engines|evaluations|machines|nodes|ranks|steps)\b")


@pytest.mark.parametrize(
    "command",
    [
        "plan h100/scalerl_8b_node --set Budget.steps=1",
        "simulate quickstart --set Budget.steps=1 --hours 0.01 --no-search",
        "launch slurm h100/scalerl_8b_node --out /shared/a --set SFT.pretrained=/m",
        "launch k8s h100/scalerl_8b_node --out /runs/a --set SFT.pretrained=/runs/m --image I --claim C",
    ],
)
def test_one_of_a_thing_is_said_in_the_singular(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(command.split())
    said = capsys.readouterr().out
    assert "1 node" in said or "1 step" in said
    assert ONE.findall(said) == []
