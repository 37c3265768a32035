"""A plan says what holds a step up: verifiers, the driver; and what it only assumes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from scalelab.cli import main
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.plan import idle as idle_module
from scalelab.plan.driver import BUSY, driver_cores, driver_warning
from scalelab.plan.idle import idle
from scalelab.plan.notes import notes
from scalelab.plan.placement import placement, resize
from scalelab.plan.planner import RunPlan, plan_of
from scalelab.plan.prompts import verify_seconds
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run
from tasks.data.datasets import MathDataset

RULES = ("Run.tasks=(@ReasoningGym(),)", "Run.task_weights=None", "ReasoningGym.family='leg_counting'")
"""A task that says what its reward costs."""
LIVE = ("Evaluation.sets=(@HeldOut(), @Benchmark())", "Benchmark.data='livecodebench'")


def planned(run: Run) -> RunPlan:
    return plan_of(run, placement(run), device("h100"), Assumptions())


def costly(seconds: float, verifiers: int) -> Run:
    """The 8B run, whose rewards cost so many seconds of a core."""
    run = resolve("h100/scalerl_8b", [f"Cluster.verifiers={verifiers}"]).run
    cls = type("Costly", (MathDataset,), {"seconds_per_reward": seconds})
    tasks = tuple(cls(one.dataset, workers=1) for one in run.tasks)
    return replace(run, tasks=tasks)


def test_verifiers_that_are_too_few_hold_a_step_up_and_the_number_that_is_named_does_not() -> None:
    plenty, few = costly(0.0, 1), costly(2.0, 4)
    free, held = planned(plenty), planned(few)
    assert held.seconds["step"] == held.seconds["verify"] > free.seconds["step"]
    # Longhand: every completion of a step, and its share of the evaluations', is two seconds of one of four cores.
    assert verify_seconds(few, 4) == 2.0 / 4
    assert held.seconds["verify"] >= few.recipe.completions_per_step * 2.0 / 4
    [said] = [one for one in notes(few, held, device("h100"), Assumptions()) if "verifiers take" in one]
    enough = int(said.rpartition("=")[2])
    again = planned(costly(2.0, enough))
    assert again.seconds["step"] == pytest.approx(free.seconds["step"])
    assert planned(costly(2.0, enough // 2)).seconds["step"] > free.seconds["step"]  # evaluations by hours become fewer
    assert not [
        one for one in notes(costly(2.0, enough), again, device("h100"), Assumptions()) if "verifiers take" in one
    ]


def test_the_plan_that_is_printed_names_the_verifiers_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    settings = (*RULES, "ReasoningGym.seconds_per_reward=2.0", "ReasoningGym.workers=1", "Cluster.verifiers=2")
    main(["plan", "h100/scalerl_8b", *(word for one in settings for word in ("--set", one))])
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 verifiers take " in shown
    assert "bind Cluster.verifiers=" in shown


def test_the_driver_is_counted_and_warned_of_before_it_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "h100/scalerl_8b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = resolve("h100/scalerl_8b").run
    least = driver_cores(run.recipe.completions_per_step / found["seconds_per_step"])
    assert least <= found["driver_cores"] <= 1.5 * least
    assert not [one for one in found["notes"] if "driver" in one]
    assert driver_warning(BUSY - 0.01) is None
    said = driver_warning(driver_cores(3800))
    assert said is not None
    assert f"{driver_cores(3800):.2f} of the one core" in said
    short = ["Recipe.prompts_per_step=2400", "Recipe.max_tokens=1400", "Recipe.length_control=None"]
    many = ["--gpus", "4000", *(word for one in short for word in ("--set", one))]
    for command in (["plan"], ["simulate", "--hours", "0.05", "--no-search"]):
        assert not main([*command, "h100/scalerl_8b", *many])
        assert "of the one core that it has: let two runs share the devices" in capsys.readouterr().out, command
    assert main(["simulate", "h100/scalerl_8b", "--hours", "1", "--no-search", "--json"]) == 0
    split = json.loads(capsys.readouterr().out)["split"]
    assert split["driver_cores"] == driver_cores(split["handled_per_second"])
    assert split["handled_per_second"] > 0.9 * split["completions_per_hour"] / 3600


def test_plan_and_simulator_agree_where_completions_leave_most_of_the_room_to_prompts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = ["Recipe.prompts_per_step=240", "Recipe.max_tokens=1400", "Recipe.length_control=None"]
    asked = ["h100/scalerl_8b", "--gpus", "400", "--json", *(word for one in short for word in ("--set", one))]
    assert main(["plan", *asked]) == 0
    planned = json.loads(capsys.readouterr().out)["seconds_per_step"]
    assert main(["simulate", *asked, "--hours", "0.2", "--no-search"]) == 0
    simulated = json.loads(capsys.readouterr().out)["split"]["seconds_per_step"]
    assert simulated == pytest.approx(planned, rel=0.05)


@pytest.mark.parametrize(("name", "prompt"), [("h100/scalerl_8b", 256), ("quickstart", 12)])
def test_the_prompt_that_a_plan_says_it_assumed_is_the_one_it_used(
    name: str, prompt: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines of the miniatures have no room for 256 tokens."""
    main(["plan", name, "--json"])
    assert json.loads(capsys.readouterr().out)["assumptions"]["prompt"] == prompt
    main(["plan", name])
    assert f"prompt {prompt}," in capsys.readouterr().out


def test_a_set_whose_problems_nobody_counted_is_said_to_be_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*settings: str) -> str:
        main(["plan", "h100/scalerl_8b", *(word for one in (*LIVE, *settings) for word in ("--set", one))])
        return " ".join(capsys.readouterr().out.split())

    assert "nobody counted the problems of livecodebench: planned with 1,000" in said()
    assert "nobody counted" not in said("Benchmark.prompts=100")
    assert "nobody counted" not in said("Benchmark.data='aime_24'")


def waits(plan: RunPlan) -> float:
    return 1 - plan.seconds["train"] / plan.seconds["step"]


@pytest.mark.parametrize("asked", [["h100/scalerl_8b", "--gpus", "1000"], ["h100/scalerl_17bx16_least"]])
def test_what_is_proposed_to_a_trainer_that_idles_keeps_it_busy(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *asked, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["seconds"]["train"] < 0.5 * plan["seconds_per_step"]
    [said] = [note for note in plan["notes"] if "stands idle" in note]
    ways = [line.strip() for line in said.splitlines()[1:]]
    assert ways
    for way in ways:
        if way.startswith("the same devices"):
            settings = way.partition(" with ")[2].split()
            shorter = float(way.split()[4])
            assert shorter < 0.9 * plan["seconds_per_step"]
            assert main(["plan", asked[0], *settings, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["gpus"] <= plan["gpus"]
            assert found["seconds_per_step"] == pytest.approx(shorter, abs=0.06)
        elif way.startswith("Recipe."):
            assert main(["plan", *asked, "--set", way.split()[0], "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["seconds"]["train"] > 0.5 * found["seconds_per_step"]
        else:
            run = resolve(asked[0]).run
            place = replace(placement(run), engines=int(way.partition("=")[2].partition(",")[0]))
            assert waits(plan_of(run, place, device("h100"), Assumptions())) < 0.5


@pytest.mark.parametrize("name", ["h100/scalerl_8b", "scalerl_8b"])
def test_a_batch_is_proposed_on_ten_thousand_devices_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On H100 a hundred times the batch keeps the trainer busy; on GB200 the driver holds that up, at half a step."""
    monkeypatch.setattr(idle_module, "propose", lambda *_: None)
    run, kind = resolve(name).run, device(name.partition("/")[0] if "/" in name else "gb200")
    plan = plan_of(run, place := resize(run, 10_000), kind, Assumptions())
    [said] = [one for one in notes(run, plan, kind, Assumptions()) if "stands idle" in one]
    prompts = int(re.findall(r"Recipe.prompts_per_step=(\d+) ", said)[0])
    larger = replace(run, recipe=replace(run.recipe, prompts_per_step=prompts))
    assert idle(plan) > 0.9
    assert idle(plan_of(larger, place, kind, Assumptions())) < (0.1 if kind.name == "h100" else 0.5)


def test_a_faster_placement_is_named_beside_a_trainer_that_is_busy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "h100/scalerl_8b", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    [said] = [note for note in plan["notes"] if "the same devices take" in note]
    assert "stands idle" not in said
    assert main(["plan", "h100/scalerl_8b", *shlex.split(said.partition(" with ")[2]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds_per_step"] < 0.9 * plan["seconds_per_step"]
    assert not any("the same devices take" in note for note in found["notes"])


def test_a_trainer_that_sends_weights_is_not_idle() -> None:
    plan = plan_of(run := resolve("h100/scalerl_17bx16").run, placement(run), device("h100"), Assumptions())
    seconds = plan.seconds
    assert seconds["standstill"] > 5
    busy = seconds["train"] + seconds["standstill"] + seconds["checkpoint"]
    assert idle(plan) == pytest.approx(1 - busy / seconds["step"])


def test_a_first_step_that_waits_for_hours_of_the_base_models_evaluation_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Engines that are set aside for it, and few samples, let training begin."""

    def said(*command: str) -> list[str]:
        assert main(["plan", *command, "--json"]) == 0
        return [one for one in json.loads(capsys.readouterr().out)["notes"] if "before the first step" in one]

    for least, hours in (("h100/scalerl_17bx16_least", "7"), ("h200/scalerl_17bx16_least", "5")):
        assert said(least) == []
        [note] = said(least, "--set", "HeldOut.samples=16", "--set", "Evaluation.engines=0")
        assert re.search(
            rf"takes all engines for {hours}\.\d hours before the first step, 1?\d\d\d? device-hours", note
        )
    assert said("h200/scalerl_17bx16_least", "--set", "HeldOut.samples=16") == [], "one of its two goes on"
    assert said("h100/scalerl_17bx16") == []
