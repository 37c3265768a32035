"""Tasks of one's own: the tutorial runs as written, and no reward function can hold or break a run."""

import http.server
import importlib
import itertools
import json
import pickle
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest

from tasks.errors import TaskError
from tasks.gym import ReasoningGym, committed, stated_number
from tasks.own import FunctionTask
from tasks.rewards import weighted
from tasks.task import has_worked_examples, require_task, worked_example
from tasks.types import Prompt, Verdict

DOCS = Path(__file__).parents[2] / "docs" / "tutorials" / "own_task.md"

REWARDS = """
import os, time

def exact(prompt, answer):
    return float(answer.strip() == prompt.gold)

def naughty(prompt, answer):
    if answer == "loop":
        while True: pass
    if answer == "raise":
        raise ValueError("\\ud800 is no answer")
    if answer == "three":
        return 3
    if answer == "text":
        return "right"
    if answer == "nan":
        return {"form": float("nan")}
    if answer == "nothing":
        return {}
    if answer == "die":
        os._exit(1)
    if answer == "print":
        print('{"id": 1, "value": 1.0}', flush=True)
        return 0
    return True
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a user's modules, on the module path as an experiment's folder is."""
    folder = tmp_path_factory.mktemp("mine")
    [source] = re.findall(r"```python title=\"my_task.py\"\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 30, "a task is one screen"
    (folder / "my_task.py").write_text(source)
    (folder / "my_rewards.py").write_text(REWARDS)
    rows = [{"prompt": f"Say {n}", "gold": str(n), "level": n % 3} for n in range(40)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("my_task", "my_rewards"):
        sys.modules.pop(name, None)


def rewards() -> ModuleType:
    """The user's module of rewards."""
    return importlib.import_module("my_rewards")


def verdicts(task: Any, *pairs: tuple[Prompt, str]) -> list[Verdict]:
    verifier = task.verifier()
    try:
        return verifier.verify(pairs)
    finally:
        verifier.close()


def test_the_tutorial_s_task_works_as_written(home: Path) -> None:
    task = importlib.import_module("my_task").Reverse(letters=6)
    require_task(type(task))
    prompt, held = task.prompt(0), task.held_out(50)
    assert {one.id for one in held}.isdisjoint({task.prompt(n).id for n in range(task.size)})
    right, partly, wrong = verdicts(
        task, (prompt, f" {prompt.gold}\n"), (prompt, prompt.gold[:3] + "zzz"), (prompt, "\ud800")
    )
    assert (right.outcome, right.reward, right.parts) == ("passed", 1.0, {"letters": 1.0, "length": 1.0})
    assert (partly.outcome, partly.reward, partly.parts) == ("failed", 0.75, {"letters": 0.5, "length": 1.0})
    assert (wrong.outcome, wrong.reward) == ("failed", 0.0)
    assert pickle.loads(pickle.dumps(task)).prompt(3) == task.prompt(3)


def test_a_worked_example_of_a_problem_is_never_held_out_and_needs_a_text(home: Path) -> None:
    reverse: Any = importlib.import_module("my_task").Reverse
    task = reverse(letters=3, size=200)
    held = {one.id for one in task.held_out(60)}
    for number in range(300):
        prompt, text = worked_example(task, number)
        assert text == prompt.gold
        assert prompt.id not in held
    assert has_worked_examples(task)

    @dataclass(frozen=True)
    class Silent(reverse):
        def problem(self, rng: random.Random) -> Any:
            return super().problem(rng)[:2]

    @dataclass(frozen=True)
    class Odd(reverse):
        def problem(self, rng: random.Random) -> Any:
            return "Write nothing.", "", None

    assert not has_worked_examples(Silent())
    assert Silent().prompt(0) == reverse().prompt(0)
    with pytest.raises(TaskError, match="return what is asked"):
        Odd().prompt(0)


def test_parts_are_weighted(home: Path) -> None:
    task = importlib.import_module("my_task").Reverse(weights={"letters": 3.0, "length": 1.0}, pass_at=0.6)
    prompt = task.prompt(1)
    (verdict,) = verdicts(task, (prompt, prompt.gold[:2] + "zzz"))
    assert (verdict.outcome, verdict.reward) == ("failed", pytest.approx((3 * 0.4 + 1) / 4))
    assert weighted({"a": 0.5, "b": 1}, None) == (0.75, {"a": 0.5, "b": 1.0})
    with pytest.raises(TaskError, match="name the same"):
        weighted({"a": 0.5}, {"b": 1.0})


def test_a_file_and_a_function_are_a_task(home: Path) -> None:
    task = FunctionTask(prompts=str(home / "prompts.jsonl"), function=rewards().exact, held_out_size=10)
    require_task(task)
    assert (task.size, len(task.held_out(10)), task.describe()["train"]) == (30, 10, 30)
    assert {one.id for one in task.held_out(10)}.isdisjoint({task.prompt(n).id for n in range(60)})
    prompt = task.prompt(0)
    assert prompt.meta == {"level": int(prompt.gold) % 3}
    assert [v.reward for v in verdicts(task, (prompt, prompt.gold), (prompt, "x"))] == [1.0, 0.0]
    with pytest.raises(TaskError, match="holds out 10 prompts, 11"):
        task.held_out(11)


def test_no_reward_function_holds_or_breaks_a_run(home: Path) -> None:
    task = FunctionTask(
        prompts=str(home / "prompts.jsonl"), function=rewards().naughty, reward_seconds=0.5, held_out_size=1
    )
    prompt = task.prompt(0)
    asked = ["ok", "loop", "raise", "three", "text", "nan", "nothing", "die", "print", "ok"]
    start = time.monotonic()
    got = verdicts(task, *((prompt, answer) for answer in asked))
    assert time.monotonic() - start < 60
    outcomes = ["passed", "timeout", *["error"] * 6, "failed", "passed"]
    assert [one.outcome for one in got] == outcomes
    assert "raised ValueError: \ufffd is no answer" in got[2].detail
    assert "returned 3.0 as reward: give a number from 0 to 1" in got[3].detail
    for one in got:
        json.dumps(one.detail, ensure_ascii=False).encode()


def test_thinking_is_cut_off_before_the_reward(home: Path) -> None:
    task = importlib.import_module("my_task").Reverse(thinking=True)
    prompt = task.prompt(0)
    assert prompt.text.endswith("<think>\n")
    got = verdicts(task, (prompt, f"hm</think>{prompt.gold}"), (prompt, prompt.gold))
    assert [one.outcome for one in got] == ["passed", "failed"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"prompts": "", "function": len}, "give a JSON lines or Parquet file"),
        ({"prompts": "p.jsonl"}, "@my_module.my_function"),
        ({"prompts": "p.jsonl", "function": len, "pass_at": 0.0}, "pass_at is 0.0"),
        ({"prompts": "p.jsonl", "function": len, "weights": {"x": 0.0}}, "give positive numbers"),
        ({"prompts": "p.jsonl", "function": len, "workers": 0}, "give 1 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        FunctionTask(**settings)


def test_what_is_missing_is_named_in_one_line(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"gold": 1}\n')
    with pytest.raises(TaskError, match=r"line 2 has no column 'prompt' \(it has gold\)"):
        FunctionTask(prompts=str(tmp_path / "bad.jsonl"), function=rewards().exact).held_out(1)
    with pytest.raises(TaskError, match="cannot be read"):
        FunctionTask(prompts=str(tmp_path / "none.jsonl"), function=rewards().exact).held_out(1)


def test_a_parquet_file_is_a_task_by_its_columns(home: Path, tmp_path: Path) -> None:
    rows = [{"question": f"Say {n}", "answer": str(n), "solution": f"It is {n}.", "level": n} for n in range(9)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    columns = {"prompt": "question", "gold": "answer", "trace": "solution"}
    given = {"prompts": str(tmp_path / "p.parquet"), "function": rewards().exact, "held_out_size": 3}
    task = FunctionTask(columns=columns, template="{prompt}, please.\n", **given)
    prompt, text = worked_example(task, 4)
    assert (prompt.text, text) == (f"Say {prompt.gold}, please.\n", f"It is {prompt.gold}.")
    assert prompt.meta == {"level": int(prompt.gold)}
    assert prompt.id not in {one.id for one in task.held_out(3)}
    assert has_worked_examples(task)
    assert not has_worked_examples(FunctionTask(columns={"prompt": "question"}, **given))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a', "line 2 is no JSON: "),
        ('["a"]', "line 2 is a list, no object"),
        ('{"prompt": " "}', "line 2 asks nothing: its prompt is ' '"),
        ('{"prompt": 3}', "line 2 asks nothing: its prompt is 3"),
        ('{"prompt": "a", "gold": NaN}', "line 2 holds what JSON cannot"),
    ],
)
def test_a_row_that_asks_nothing_is_named_with_its_reason(home: Path, tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(TaskError, match=re.escape(said)):
        FunctionTask(prompts=str(tmp_path / "p.jsonl"), function=rewards().exact).held_out(1)


class Judge(http.server.BaseHTTPRequestHandler):
    """A judge that is busy at first."""

    asked = itertools.count()

    def do_POST(self) -> None:
        busy = next(Judge.asked) == 0
        answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["answer"]
        body = json.dumps({"score": float(answer == "good")}).encode()
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_reward_may_ask_a_judge_with_retries_and_a_deadline(home: Path, tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (home / "my_judge.py").write_text(
            "import asyncio\n\n"
            "from scalelab.own import ask_server\n\n\n"
            "async def judged(prompt, answer):\n"
            "    if answer == 'hang':\n"
            "        await asyncio.Event().wait()\n"
            "    if answer == 'raise':\n"
            "        raise KeyError('score')\n"
            f"    reply = await ask_server('http://127.0.0.1:{server.server_port}', {{'answer': answer}})\n"
            "    return {'judge': reply['score']}\n"
        )
        judged = importlib.import_module("my_judge").judged
        task = FunctionTask(prompts=str(home / "prompts.jsonl"), function=judged, reward_seconds=60.0, workers=1)
        prompt = Prompt("own/1", "own", "", None)
        good, bad, raised = verdicts(task, *((prompt, answer) for answer in ("good", "bad", "raise")))
        server.shutdown()
    found = good.outcome, good.parts, bad.outcome, bad.parts
    assert found == ("passed", {"judge": 1.0}, "failed", {"judge": 0.0}), (good.detail, bad.detail)
    assert raised.outcome == "error"
    assert "raised KeyError: 'score' (my_judge.py:10)" in raised.detail
    assert next(Judge.asked) == 3, "one answer more than asked for, after the judge was busy"
    (hung,) = verdicts(replace(task, reward_seconds=0.2), (prompt, "hang"))
    assert hung.outcome == "error"
    assert "no reward within 0.2 s" in hung.detail


def test_a_reward_imports_what_its_caller_would(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder at the end of the caller's module path, with an older copy of a package, is not looked at first."""
    (tmp_path / "numpy.py").write_text("raise ImportError('the wrong numpy')\n")
    (home / "my_numpy.py").write_text(
        "def exact(prompt, answer):\n    import numpy\n\n    return float(numpy.array([1.0]).sum())\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    task = FunctionTask(prompts="p.jsonl", function=importlib.import_module("my_numpy").exact, workers=1)
    (verdict,) = verdicts(task, (Prompt("own/1", "own", "", None), "x"))
    assert verdict.outcome == "passed", verdict.detail


def test_a_task_whose_module_is_not_importable_says_so(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleeting.py").write_text("def exact(prompt, answer): return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = FunctionTask(prompts="p.jsonl", function=importlib.import_module("fleeting").exact)
    (tmp_path / "fleeting.py").unlink()
    verifier = task.verifier()
    with pytest.raises(TaskError, match=r"did not start.*fleeting"):
        verifier.verify([(Prompt("own/1", "own", "", None), "x")])
    verifier.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["countdown", "spell_backward", "letter_counting", "basic_arithmetic", "number_sorting"]
)
def test_a_family_of_reasoning_gym_is_a_task_by_its_name(family: str) -> None:
    task = ReasoningGym(name=family, size=32)
    require_task(task)
    prompt = task.prompt(0)
    held = {one.id for one in task.held_out(8)}
    assert held.isdisjoint({task.prompt(n).id for n in range(32)})
    right, wrong, empty = verdicts(
        task, (prompt, f"So <answer>{prompt.gold['answer']}</answer>"), (prompt, "no idea"), (prompt, "")
    )
    assert (right.outcome, wrong.outcome, empty.outcome) == ("passed", "failed", "failed")


@pytest.mark.slow
def test_a_family_of_numbers_is_graded_by_the_number_that_an_answer_states() -> None:
    settings: dict[str, Any] = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    task = ReasoningGym(name="chain_sum", settings=settings, size=32, number=True)
    require_task(task)
    prompt = task.prompt(0)
    right = prompt.gold["answer"]
    answers = (f"The answer is {right}. Add them.", f"2 + 2 = {right}", right, f"{right}1", "The answer is five.", "")
    assert [one.outcome for one in verdicts(task, *((prompt, answer) for answer in answers))] == [
        *("passed", "passed", "passed", "failed", "failed", "failed")
    ]
    with pytest.raises(TaskError, match="bind one of them"):
        ReasoningGym(name="chain_sum", number=True, partial=True)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("The answer to 0 - 4 is 4.", 4),  # what a model learned to write where a formula counted as its value
        ("The answer to 3 - 9 is 2 (+9) - (", None),
        ("The answer to 0 - 0 is the value that is left after performing", None),
        ("0 - 4", None),
        ("The answer is 9 - 2.", None),
        ("5 + 8 = 13\nDone", 13),
        ("It is \u22124.", -4),
        ("\\boxed{-4}", -4),
        ("<answer>0.50</answer>", Fraction(1, 2)),
        ("= 15.5x", None),
        ("", None),
    ],
)
def test_only_a_bare_number_is_stated(answer: str, number: int | Fraction | None) -> None:
    assert stated_number(answer) == number


@pytest.mark.slow
def test_an_unknown_family_and_unsafe_ones_are_refused() -> None:
    with pytest.raises(TaskError, match="did you mean countdown"):
        ReasoningGym(name="count_down").prompt(0)
    with pytest.raises(TaskError, match="cannot be graded safely"):
        ReasoningGym(name="codeio")
    with pytest.raises(TaskError, match="do not fit family countdown"):
        ReasoningGym(settings={"colour": 3}).prompt(0)


def test_what_an_answer_commits_itself_to() -> None:
    assert committed("<answer>1</answer> no, <answer> 2</answer>.") == "2"
    assert committed(r"so \boxed{3}") == "3"
    assert committed(" 4 ") == "4"


@pytest.mark.slow
def test_a_machine_without_a_compiler_has_every_family_but_the_one_that_needs_pycosat() -> None:
    """In a process that finds no pycosat, whether or not this environment has it."""
    code = (
        "import importlib.util as util, random; found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'pycosat' else found(name, *more)\n"
        "from tasks.errors import TaskError\nfrom tasks.gym import ReasoningGym\n"
        "print(ReasoningGym(name='basic_arithmetic').problem(random.Random(0))[1]['answer'])\n"
        "try:\n    ReasoningGym(name='zebra_puzzles').problem(random.Random(0))\n"
        "except TaskError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    number, refused = done.stdout.splitlines()
    assert number.lstrip("-").isdigit()
    assert refused.startswith("zebra_puzzles needs pycosat, which is compiled when it is installed: sudo apt-get")
