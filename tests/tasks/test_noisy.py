"""The study's tasks whose verdicts err in training."""

from __future__ import annotations

import random

import pytest

from scalelab.cli import main
from scalelab.experiment import resolve
from tasks.errors import TaskError
from tasks.math.miniature import MathMiniature
from tasks.noisy import NoisyVerdicts
from tasks.types import Prompt

SIZE = 600


def answered(prompts: list[Prompt], right: bool) -> list[tuple[Prompt, str]]:
    return [(prompt, f"</think>{int(prompt.gold) + (not right)}") for prompt in prompts]


@pytest.mark.parametrize(("false_pass", "false_refusal"), [(0.2, 0.0), (0.0, 0.1), (0.3, 0.3)])
def test_a_share_of_the_verdicts_on_training_prompts_is_turned_round_and_none_on_held_out_ones(
    false_pass: float, false_refusal: float
) -> None:
    task = NoisyVerdicts(MathMiniature(size=SIZE), false_pass, false_refusal)
    verifier = task.verifier()
    trained, held_out = [task.prompt(index) for index in range(SIZE)], task.held_out(100)
    for right, wrong_share in ((False, false_pass), (True, false_refusal)):
        found = verifier.verify(answered(trained, right))
        turned = [one.reward != right for one in found]
        assert sum(turned) / SIZE == pytest.approx(wrong_share, abs=4 * (0.25 / SIZE) ** 0.5)
        assert all((one.outcome == "passed") == (one.reward == 1.0) for one in found)
        assert [one.reward for one in verifier.verify(answered(held_out, right))] == [float(right)] * 100
    again = answered(trained, True)
    random.Random(0).shuffle(again)
    known = {prompt.id: one.reward for (prompt, _), one in zip(answered(trained, True), found)}
    assert [one.reward for one in verifier.verify(again)] == [known[prompt.id] for prompt, _ in again]
    verifier.close()


def test_it_asks_what_the_task_asks() -> None:
    plain = MathMiniature(size=64)
    noisy = NoisyVerdicts(plain, 0.1)
    for index in range(64):
        assert (noisy.prompt(index).id, noisy.prompt(index).text) == (plain.prompt(index).id, plain.prompt(index).text)
        assert noisy.trace(index) == plain.trace(index)
    assert noisy.held_out(32) == plain.held_out(32)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(TaskError, match="false_refusal of task math is"):
        NoisyVerdicts(MathMiniature(), false_refusal=share)


def test_members_of_the_study_differ_in_their_verdicts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    noisy, plain = resolve("study_two/false_refusal_20").run, resolve("study_two/scalerl").run
    assert [task.task for task in noisy.tasks] == list(plain.tasks)
    assert {(task.false_pass, task.false_refusal) for task in noisy.tasks} == {(0.0, 0.2)}
    assert main(["show", "study_two/false_refusal_20", "--diff", "study_two/scalerl"]) == 0
    assert "1 difference" in capsys.readouterr().out
