"""The simulator, given the lengths of a real virtual run, takes the same steps at the same times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from scalelab.experiment import resolve
from scalelab.plan.rates import trainer_unit
from scalelab.run.config import Run
from scalelab.run.settings import Rates
from scalelab.store.lines import read_lines
from scalelab.virtual.clock import virtual_loop
from scalelab.virtual.simulation import Drawn, DrawnStep, DrawnWork, NoCheckpoints, Shape, Simulation
from tests.helpers.virtual_runs import command, environment

pytestmark = pytest.mark.slow

LIVE = ("Rates.transfer_seconds=3.7", "Rates.host_seconds=0.3", "Rates.verify_seconds=2.3")
RUNS = {
    "pipeline": ("PipelineRL.k=2", *LIVE),
    "pipeline, groups replaced": ("PipelineRL.k=4", 'Recipe.zero_variance="refill"', *LIVE),
    "rounds, groups replaced": (
        "Run.schedule=@PPOOffPolicy()",
        "PPOOffPolicy.k=3",
        'Recipe.zero_variance="refill"',
        *LIVE,
    ),
    "synchronous": ("Run.schedule=@Synchronous()",),
}
DAILY, NIGHTLY = ("pipeline, groups replaced",), ("synchronous", "pipeline", "rounds, groups replaced")
ENDLESS = 10**9
"""Tokens of a completion that a rest broke off."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real virtual runs, made in turn by one process, with what decides their times recorded beside them."""
    folder = tmp_path_factory.mktemp("replayed")
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    outs = {name: folder / name.replace(", ", "_").replace(" ", "_") for name in RUNS if name in asked}
    commands = [
        command(folder, out, *(part for one in RUNS[name] for part in ("--set", one)))[3:] for name, out in outs.items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.recorder", json.dumps(commands)],
        env=environment(folder) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return outs


def settings_of(out: Path) -> Run:
    """The settings of a run; its own modules are forgotten again, as other tests have theirs under the same names."""
    with patch.object(sys, "path", sys.path[:]), patch.dict(os.environ):
        run = resolve(str(out / "config.gin"), imports=True).run
    del sys.modules["coin"]
    return run


@dataclass
class Graded:
    """A finished group as it was recorded."""

    trained: float
    completions: Sequence[tuple[int, int]]
    reason: str | None


class RecordedWork(DrawnWork):
    """The groups of a run that was recorded."""

    def __init__(self, recorded: dict[str, Any], generations: int) -> None:
        super().__init__(iter(()), generations)
        self._trained, self._dropped = recorded["trained"], recorded["dropped"]
        self._lengths = {name: iter(times) for name, times in recorded["lengths"].items()}
        self._names: dict[str, str] = {}

    def requests(self, name: str, prompt: str) -> list[int]:
        self._names[prompt] = name
        return [ENDLESS if tokens is None else tokens for tokens in next(self._lengths[name])]

    def rollouts(self, prompt: str, completions: Sequence[tuple[int, int]], verdicts: Sequence[None]) -> Any:
        name = self._names[prompt]
        return Graded(self._trained[name], completions, self._dropped.get(name))

    def outcome(self, rollouts: Any) -> tuple[None, str | None]:
        return None, rollouts.reason


def tokens_of(rollouts: Any) -> int:
    return sum(tokens for tokens, _ in rollouts.completions)


class Replay(Simulation, NoCheckpoints):
    """A simulation with the lengths of a virtual run, which pauses where that did."""

    pauses = True

    def __init__(self, out: Path) -> None:
        run = settings_of(out)
        manifest = json.loads((out / "manifest.json").read_text())
        shape = Shape(
            generators=run.cluster.generators,
            trainers=run.cluster.trainers // trainer_unit(run),
            groups_per_step=run.recipe.prompts_per_step,
            generations=run.recipe.generations_per_prompt,
            slots=manifest["places"],
            prompt_tokens=0,
        )
        schedule = run.schedule.start(shape.groups_per_step, run.budget.steps)
        never: Iterator[Drawn] = iter(())
        super().__init__(schedule, shape, Rates(**manifest["rates"]), never)
        self.loop.work = RecordedWork(json.loads((out / "recorded.json").read_text()), shape.generations)
        self.loop.books.tokens_of = tokens_of  # type: ignore[method-assign]  # for those that were left out
        self.loop.checkpointer, self.loop.checkpoint_due = self, run.checkpoint_cadence.due
        self.lines: list[dict[str, Any]] = []

    async def rest(self) -> None:
        """Leave engines and clock as the virtual world does."""
        self.trainer.forget()
        self.graders.forget()
        self.engines.version = self.loop.books.version

    def stepped(self, names: list[str], step: DrawnStep, result: None, seconds: dict[str, float]) -> None:
        super().stepped(names, step, result, seconds)
        books = self.loop.books
        self.lines.append(
            {
                "step": books.version,
                "groups": names,
                "tokens": step.sequences,
                "staleness": {str(late): count for late, count in sorted(step.staleness.items())},
                "refilled": dict(books.dropped),
                "time": virtual_loop().time(),
                "seconds": seconds,
                "compute": books.ledger.compute,
                "compute_by_role": dict(books.ledger.hours),
                "generator_idle_seconds": self.engines.usage.idle,
                "generator_lag": books.version - self.engines.version,
                "outstanding": {
                    "groups": books.schedule.outstanding,
                    "completions": self.engines.outstanding,
                    "grading": self.graders.outstanding,
                },
            }
        )


@pytest.mark.parametrize("name", [*DAILY, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)])
def test_the_simulator_with_a_runs_lengths_agrees_on_schedule_staleness_and_hours(
    name: str, runs: dict[str, Path]
) -> None:
    steps, replay = read_lines(runs[name] / "metrics.jsonl"), Replay(runs[name])
    replay.run()
    for line, real in zip(replay.lines, steps, strict=True):
        assert line == {field: real[field] for field in line}


@pytest.mark.parametrize("name", DAILY)
def test_what_is_replayed_has_all_that_could_part_the_two(name: str, runs: dict[str, Path]) -> None:
    replaced = runs[name]
    recorded, steps = json.loads((replaced / "recorded.json").read_text()), read_lines(replaced / "metrics.jsonl")
    drawn = recorded["lengths"].values()
    assert any(None in group for times in drawn for group in times), "completions that a rest breaks off"
    assert any(len(times) > 1 for times in drawn)
    assert any(task["interrupted"] for line in steps for task in line["tasks"].values())
    assert recorded["dropped"], "groups that others take the place of"
    late = sum((Counter(line["staleness"]) for line in steps), Counter[str]())
    assert len(late) > 2, "weights that change in flight"


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["synchronous"])
def test_what_is_replayed_has_groups_without_a_loss(name: str, runs: dict[str, Path]) -> None:
    steps = read_lines(runs[name] / "metrics.jsonl")
    assert any(line["prompts_in_loss"] < line["prompts"] for line in steps)
