"""A norm, a length control, a schedule and a loss of the user's own, in one file, act where built-in ones do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scalelab.cli import main
from scalelab.errors import LabError
from scalelab.experiment import Resolved, resolve
from scalelab.recipe.types import Rollout
from scalelab.run.books import new_books
from scalelab.run.work import RolloutWork
from scalelab.session.worlds import phrase_ids
from scalelab.start.base_model import base_tokenizer
from tasks.types import Prompt
from tests.helpers.crash_world import Letters
from tests.helpers.recipe_step import build_step

OWN = '''
from dataclasses import dataclass
from scalelab.recipe.length_control import LengthControl
from scalelab.schedule.schedule import Schedule
from tasks.sampler import MixtureSampler

@dataclass(frozen=True)
class Plain:
    """Gradient descent."""
    share: float = 1.0
    def update(self, values, gradient, first, second, *, step, lr, decay):
        values.sub_(self.share * lr * gradient)

@dataclass(frozen=True)
class Hardest:
    """Draws a prompt again only while it is passed less often than this."""
    below: float = 0.5
    def __call__(self, tasks, weights, seed, retire_at):
        return Hard(tasks, weights, seed, retire_at, below=self.below)

class Hard(MixtureSampler):
    def __init__(self, *args, below):
        super().__init__(*args)
        self.below = below
    def wants(self, prompt):
        return all(rate < self.below for rate in self.history(prompt.id))

@dataclass(frozen=True)
class Largest:
    """Divides by the largest advantage of the step."""
    share: float = 1.0
    def normalise(self, advantages):
        top = max(abs(group).max() for group in advantages)
        return [self.share * group / top for group in advantages]

@dataclass(frozen=True)
class Half(LengthControl):
    """Ends the thinking at a fixed place, and fines what is longer than ten tokens."""
    phrase: str = "enough</think>"
    place: int = 9
    def draw(self, rng):
        return self.place
    def penalty(self, lengths_N, correct_N):
        return -0.5 * (lengths_N > 10)

@dataclass(frozen=True)
class Twos:
    """Two rounds of groups outstanding at most."""
    ahead: int = 2
    def start(self, groups_per_step, steps):
        return Ahead(groups_per_step, steps, ahead=self.ahead)

@dataclass
class Ahead(Schedule):
    ahead: int = 1
    def may_start(self, generator_version):
        left = self.groups_per_step * (self.steps - self.trainer_version)
        return max(0, min(left, self.ahead * self.groups_per_step) - self.outstanding)
    def batch(self):
        return self._first_finished() if self.waiting >= self.groups_per_step else None
    def may_publish(self):
        return True
'''
BINDS = {
    "OptimizerConfig.rule": "Plain",
    "Recipe.curriculum": "Hardest",
    "Recipe.advantage_norm": "Largest",
    "Recipe.length_control": "Half",
    "Run.schedule": "Twos",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the module, in the working folder, beside an experiment that binds all of it."""
    name = f"parts_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    overrides = ", ".join(f"{key!r}: {cls}" for key, cls in BINDS.items())
    (tmp_path / "mine.py").write_text(
        f'"""Mine."""\nfrom {name} import Half, Hardest, Largest, Plain, Twos\n'
        "from experiments.quickstart import experiment as base\n"
        f"experiment = base.override({{{overrides}, 'Half.place': 7}})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield name
    sys.modules.pop(name, None)


def rollout(reward: float, tokens: int) -> Rollout:
    ids = np.ones(tokens, dtype=np.int32)
    return Rollout(
        "p",
        "math",
        ids[:2],
        ids,
        np.zeros(tokens, dtype=np.float32),
        np.zeros(tokens, dtype=bool),
        ((0, 0, tokens),),
        reward,
        "passed" if reward else "failed",
    )


def resolved(*sets: str) -> Resolved:
    return resolve("mine.py", sets)


def test_all_of_them_come_back_from_the_saved_configuration(own: str) -> None:
    first = resolved()
    Path("config.gin").write_text(first.config_gin())
    again = resolve("config.gin", imports=True)
    assert again.run == first.run
    kinds = [type(one).__name__ for one in (first.run.recipe.advantage_norm, first.run.recipe.length_control)]
    assert [*kinds, type(first.run.schedule).__name__] == ["Largest", "Half", "Twos"]
    kinds = [type(one).__name__ for one in (first.run.trainer.optimizer.rule, first.run.recipe.curriculum)]
    assert kinds == ["Plain", "Hardest"]


def test_a_curriculum_of_ones_own_makes_the_run_s_sampler_and_goes_on_from_its_state(own: str) -> None:
    run = resolved("Recipe.retire_at=None", "Hardest.below=0.3").run
    sampler, other = new_books(run).sampler, new_books(run).sampler
    drawn = [next(sampler) for _ in range(6)]
    for prompt, rate in zip(drawn, (0.2, 0.4, 0.0, 1.0, 0.29, 0.3)):
        sampler.observe(prompt.id, rate)
    assert [sampler.wants(prompt) for prompt in drawn] == [True, False, True, False, True, False]
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert [next(other).id for _ in range(5)] == [next(sampler).id for _ in range(5)]


def test_a_norm_and_a_penalty_of_ones_own_decide_the_advantages(own: str) -> None:
    recipe = resolved("Recipe.generations_per_prompt=4", "Largest.share=0.5").run.recipe
    group = [rollout(1.0, 5), rollout(1.0, 20), rollout(0.0, 5), rollout(0.0, 5)]
    sequences, _ = build_step([group], recipe, 0)
    rewards = np.array([1.0, 0.5, -1.0, -1.0])
    centred = rewards - rewards.mean()
    assert [one.extras["advantages"][-1] for one in sequences] == pytest.approx(0.5 * centred / abs(centred).max())


@pytest.mark.slow
def test_a_length_control_of_ones_own_interrupts(own: str) -> None:
    run = resolved().run
    work = RolloutWork(run.recipe, Letters(), 0, seeded=False)
    requests = work.requests("g", Prompt("math/1", "math", "2+2", "4"))
    assert {request.interrupt_at for request in requests} == {7}
    tokenizer = base_tokenizer(run)
    ids, end = phrase_ids(run, tokenizer)
    assert tokenizer.decode(ids) == "enough</think>"
    assert end


def test_a_phrase_that_does_not_close_the_thinking_is_refused(own: str) -> None:
    with pytest.raises(LabError, match="does not close the thinking"):
        resolved("Half.phrase='enough'")


def test_a_schedule_of_ones_own_runs(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "mine.py", "--hours", "0.01", "--no-search", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["split"]["steps"] > 0
