"""Miniature tasks: splits never meet, traces are wrong as often as asked, right answers pass the real verifiers."""

import pickle
import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from tasks.code.miniature import HIDDEN_INPUTS, CodeMiniature, program, run
from tasks.errors import TaskError
from tasks.math.miniature import MathMiniature
from tasks.sampler import MixtureSampler
from tasks.thinking import THINK_CLOSE, THINK_OPEN
from tasks.types import Prompt

TASKS = [MathMiniature(size=300), CodeMiniature(size=300)]
by_name = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def problem(prompt: Prompt) -> str:
    return prompt.text


@pytest.mark.slow
@by_name
def test_no_held_out_problem_is_ever_trained_on(task: MathMiniature | CodeMiniature) -> None:
    held_out = {problem(prompt) for prompt in task.held_out(300)}
    assert len(held_out) == 300
    assert held_out.isdisjoint(problem(task.prompt(index)) for index in range(700))
    assert held_out.isdisjoint(problem(task.trace(index)[0]) for index in range(2000))


@pytest.mark.slow
@by_name
def test_the_held_out_split_is_fixed_and_the_shorter_is_a_part_of_the_longer(
    task: MathMiniature | CodeMiniature,
) -> None:
    again = pickle.loads(pickle.dumps(task))
    assert [p.id for p in again.held_out(50)] == [p.id for p in task.held_out(300)[:50]]
    other_seed = type(task)(seed=task.seed + 1)
    trained = {other_seed.prompt(index).id for index in range(500)}
    assert trained.isdisjoint(p.id for p in task.held_out(300))


@by_name
def test_an_epoch_holds_every_training_prompt_once(task: MathMiniature | CodeMiniature) -> None:
    first = [task.prompt(index).id for index in range(300)]
    second = [task.prompt(index).id for index in range(300, 600)]
    assert len(set(first)) == 300
    assert sorted(first) == sorted(second)
    assert first != second


@by_name
def test_prompts_and_traces_are_functions_of_their_index(task: MathMiniature | CodeMiniature) -> None:
    assert task.trace(7) == type(task)(size=300).trace(7)
    prompt, completion = task.trace(7)
    assert prompt.text.endswith(THINK_OPEN)
    assert completion.count(THINK_CLOSE) == 1
    assert not completion.startswith(THINK_OPEN)


@pytest.mark.slow
@by_name
def test_the_real_verifier_passes_a_faultless_teacher_and_not_a_sloppy_one(task: MathMiniature | CodeMiniature) -> None:
    verifier = task.verifier()
    try:
        faultless = type(task)(teacher_error=0.0)
        verdicts = verifier.verify([faultless.trace(index) for index in range(60)])
        assert {verdict.outcome for verdict in verdicts} == {"passed"}
        verdicts = verifier.verify([type(task)(teacher_error=0.3).trace(index) for index in range(150)])
        passed = sum(verdict.outcome == "passed" for verdict in verdicts)
        assert 0.2 < passed / 150 < 0.55
        assert {verdict.outcome for verdict in verdicts} == {"passed", "failed"}
    finally:
        verifier.close()


@by_name
def test_a_teacher_who_always_errs_is_wrong_in_every_step(task: MathMiniature | CodeMiniature) -> None:
    sloppy = type(task)(teacher_error=1.0)
    for index in range(200):
        prompt, wrong = sloppy.trace(index)
        right = type(task)(teacher_error=0.0).solve(prompt, random.Random(0))
        assert wrong.partition(THINK_CLOSE)[0] != right.partition(THINK_CLOSE)[0]


def test_math_working_is_carried_to_the_answer() -> None:
    for index in range(300):
        prompt, completion = TASKS[0].trace(index)
        working, _, answer = completion.partition(THINK_CLOSE)
        steps = working.split()
        assert len(steps) == prompt.meta["terms"] - 1
        assert steps[-1].rpartition("=")[2] == answer
        value = prompt.meta["expression"].split()[0]
        for step in steps:
            assert step.startswith(value)
            value = step.rpartition("=")[2]


def test_a_program_does_what_its_operations_say() -> None:
    for index in range(200):
        prompt = TASKS[1].prompt(index)
        scope: dict = {}
        exec(program(prompt.meta["steps"]), scope)
        for case, x in zip(prompt.gold["cases"], HIDDEN_INPUTS):
            assert case["args"] == [x]
            assert scope["f"](x) == case["expected"] == run(prompt.meta["steps"], x)


def test_examples_determine_the_function() -> None:
    examples = CodeMiniature(examples_share=1.0, size=200)
    seen: dict = {}
    for index in range(200):
        prompt = examples.prompt(index)
        expected = [case["expected"] for case in prompt.gold["cases"]]
        assert seen.setdefault(prompt.text, expected) == expected


def test_repeated_draws_of_a_problem_share_their_history() -> None:
    sampler = MixtureSampler([MathMiniature(size=3)], retire_at=0.9)
    for _ in range(3):
        sampler.observe(next(sampler).id, 0.5)
    again = next(sampler)
    assert sampler.state_dict()["history"][again.id] == [0.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: MathMiniature(min_terms=1), "min_terms"),
        (lambda: MathMiniature(max_digits=0), "max_digits"),
        (lambda: MathMiniature(teacher_error=1.5), "teacher_error"),
        (lambda: MathMiniature(held_out_share=0.0), "held_out_share"),
        (lambda: MathMiniature(size=0), "size"),
        (lambda: CodeMiniature(min_operations=0), "min_operations"),
        (lambda: CodeMiniature(examples_share=-0.1), "examples_share"),
        (lambda: MathMiniature(min_terms=2, max_terms=2).held_out(1000), "raise MathMiniature.held_out_share"),
        (lambda: MathMiniature(min_terms=2, max_terms=2).prompt(0), "4096 are asked for: lower MathMiniature.size"),
    ],
)
def test_wrong_settings_are_one_line_that_says_what_to_do(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        wrong()


@pytest.mark.slow
def test_a_generator_that_is_imported_alone_leaves_the_package_whole() -> None:
    """The miniature imports one module of reasoning-gym; what needs all of them afterwards finds all."""
    code = (
        "import sys\nfrom tasks.math.miniature import MathMiniature\n"
        "alone = MathMiniature().prompt(0).text\n"
        "print(*sys.modules.keys() & {'sympy', 'matplotlib', 'reasoning_gym', 'reasoning_gym.factory'})\n"
        "from tasks.puzzles import reasoning_gym\nreasoning_gym('algorithmic')\n"
        "from reasoning_gym.factory import DATASETS\n"
        "print(len(DATASETS) > 90, MathMiniature().prompt(0).text == alone)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["", "True True"]
