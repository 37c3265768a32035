"""Classes of the user's own in a file beside the experiment: bound, checked, saved and run again like built-in ones."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalelab.errors import LabError
from scalelab.experiment import resolve, settings_in

OWN = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Annotated
from pydantic import Field, PositiveInt
from tasks.math.miniature import MathMiniature
from tasks.task import Verifier

def reward(prompt, completion) -> float:
    return float(len(completion))

@dataclass(frozen=True)
class Words:
    longest: Annotated[int, Field(ge=2, le=9)] = 5

@dataclass(frozen=True)
class Reverse:
    name: str = "reverse"
    words: Words = field(default_factory=Words)
    temperature: Annotated[float, Field(gt=0)] = 1.0
    limit: PositiveInt | None = None
    size: int | None = None
    held_out_size: int | None = None
    has_thinking: bool = True
    def describe(self): return {}
    def prompt(self, index): ...
    def held_out(self, n): raise RuntimeError("nobody asks for prompts yet")
    def verifier(self): ...

@dataclass(frozen=True)
class Mute:
    name: str = "mute"

@dataclass
class Thawed:
    name: str = "thawed"

@dataclass(frozen=True)
class Clip:
    eps: Annotated[float, Field(gt=0, lt=1)] = 0.2
    def __post_init__(self):
        if self.eps == 0.5:
            raise ValueError("eps 0.5 is a bad number: take another")
    def __call__(self, tokens):
        return -(tokens.weights_T * tokens.logprobs_T).sum(), {}
"""
HEAD = '"""My own."""\nfrom experiments.quickstart import experiment as base\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder whose module has a name that no other test uses."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield tmp_path
    sys.modules.pop(name, None)


def module(folder: Path) -> str:
    return next(folder.glob("own_*.py")).stem


def mine(folder: Path, *lines: str) -> str:
    """An experiment that binds lines over the quickstart."""
    own = folder / "fragments" / "own.gin"
    own.parent.mkdir(exist_ok=True)
    own.write_text("\n".join((*lines, "Run.task_weights = None")).replace("OWN", module(folder)) + "\n")
    (folder / "mine.py").write_text(HEAD + 'experiment = base.with_fragments("own")\n')
    return "mine.py"


def complaint(folder: Path, *lines: str) -> str:
    with pytest.raises(LabError) as caught:
        resolve(mine(folder, *lines))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(module(folder), "OWN")


TASK = "Run.tasks = (@OWN.Reverse(),)"


def test_a_class_beside_the_experiment_is_bound_by_its_module(folder: Path) -> None:
    spec = mine(folder, TASK, "OWN.Reverse.temperature = 2", "Words.longest = 7", "Recipe.loss = @OWN.Clip()")
    resolved = resolve(spec, ["Clip.eps=0.25"])
    [task] = resolved.run.tasks
    assert (task.name, task.temperature, task.words.longest, resolved.run.recipe.loss.eps) == ("reverse", 2.0, 7, 0.25)
    assert resolved.bindings[f"{module(folder)}.Words.longest"] == 7
    assert pickle.loads(pickle.dumps(resolved.run)) == resolved.run
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).tasks[0].words.longest)"
    child = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(resolved.run), capture_output=True, timeout=900
    )
    assert child.stdout == b"7\n", child.stderr.decode()


def test_a_class_of_ones_own_may_be_an_override(folder: Path) -> None:
    own = module(folder)
    (folder / "mine.py").write_text(
        HEAD + f"from {own} import Reverse\n"
        'experiment = base.override({"Reverse.limit": 3, "Run.tasks": (Reverse,), "Run.task_weights": None})\n'
    )
    assert resolve("mine.py").run.tasks[0].limit == 3


@pytest.mark.parametrize("how", ["fragment", "override"])
def test_a_function_of_ones_own_is_bound_by_its_name(folder: Path, how: str) -> None:
    own = module(folder)
    if how == "fragment":
        lines: tuple[str, ...] = ("Run.tasks = (@FunctionTask(),)", "FunctionTask.prompts = 'p'")
        lines += ("FunctionTask.function = @OWN.reward", "FunctionTask.thinking = True")
        spec = mine(folder, *lines)
    else:
        spec = "mine.py"
        (folder / spec).write_text(
            HEAD + f"from {own} import reward\nfrom tasks.own import FunctionTask\n"
            'experiment = base.override({"Run.tasks": (FunctionTask,), "Run.task_weights": None, '
            '"FunctionTask.prompts": "p", "FunctionTask.function": reward, "FunctionTask.thinking": True})\n'
        )
    resolved = resolve(spec)
    assert resolved.run.tasks[0].function(None, "four") == 4.0
    assert pickle.loads(pickle.dumps(resolved.run)).tasks[0].function is sys.modules[own].reward
    text = resolved.config_gin()
    assert f"FunctionTask.function = @{own}.reward\n" in text
    (folder / "config.gin").write_text(text)
    assert resolve("config.gin", imports=True).run == resolved.run
    with pytest.raises(LabError, match="is code of"):
        resolve("config.gin")


def test_the_saved_configuration_says_where_the_module_lies_and_runs_again_from_elsewhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    resolved = resolve(mine(folder, TASK, "Reverse.limit = 4"))
    assert resolved.modules == {module(folder): folder / f"{module(folder)}.py"}
    elsewhere = tmp_path_factory.mktemp("run")
    (elsewhere / "config.gin").write_text(resolved.config_gin())
    code = (
        "from scalelab.experiment import resolve; import pickle, sys;"
        "again = resolve('config.gin', imports=True);"
        "assert again.config_gin().splitlines()[1:] == open('config.gin').read().splitlines()[1:];"
        "print(again.run.tasks[0].limit, pickle.loads(pickle.dumps(again.run)).tasks[0].name)"
    )
    child = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, timeout=900)
    assert child.stdout.split() == ["4", "reverse"], child.stderr


def test_a_configuration_does_not_import_what_lies_beside_it(folder: Path) -> None:
    """The configuration of a run that somebody sends, with a module in its folder."""
    text = resolve(mine(folder, TASK)).config_gin()
    own = module(folder)
    config = folder / "config.gin"
    config.write_text("\n".join(line for line in text.splitlines() if not line.startswith(f"{own} =")))
    sys.modules.pop(own)
    sys.path.remove(str(folder))
    with pytest.raises(LabError, match=f"there is no configurable '{own}.Reverse'"):
        resolve(str(config), imports=True)
    assert own not in sys.modules


def test_reading_a_configuration_that_somebody_else_wrote_imports_nothing(folder: Path) -> None:
    text = resolve(mine(folder, TASK)).config_gin()
    (folder / "hostile.py").write_text("raise SystemExit('ran')\n")
    config = folder / "config.gin"
    config.write_text(text.replace(module(folder), "hostile"))
    with pytest.raises(LabError, match=r"config\.gin:\d+: @hostile\.Reverse is code of hostile\.py, which only"):
        resolve(str(config))
    assert "hostile" not in sys.modules
    settings = settings_in(config.read_text(), str(config))
    assert settings["Run.tasks"] == ("@hostile.Reverse()",)
    assert settings["Recipe.prompts_per_step"] == 16


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("Run.tasks = (@OWN.Revers(),)", "fragments/own.gin:1: OWN.py defines no 'Revers'"),
        ("Run.tasks = (@nowhere_at_all.Reverse(),)", "no module nowhere_at_all beside the experiment's file"),
        (
            "Run.tasks = (@OWN.Thawed(),)",
            "OWN.Thawed cannot be configured: make it a class under",
        ),
        (
            "Run.tasks = (@OWN.Mute(),)",
            "not (@OWN.Mute(),): Mute has no describe, has_thinking, held_out",
        ),
        (
            "Recipe.loss = @OWN.Reverse()",
            "Loss, not @OWN.Reverse(): Reverse has no __call__; there are @CISPO(), @DAPO()",
        ),
        (TASK + "\nReverse.limit = 0", "OWN.Reverse.limit must be int above 0 or None, not 0"),
        (TASK + "\nWords.longest = 12", "OWN.Words.longest must be int at least 2 and at most 9, not 12"),
        (TASK + "\nReverse.temperature = 1e400", "must be float above 0, not inf: give a finite number"),
        (TASK + "\nReverse.words = @OWN.Mute()", "OWN.Reverse.words must be @Words(), not @OWN.Mute()"),
        ("Run.tasks = (@FunctionTask(),)\nFunctionTask.function = 'OWN:reward'", "FunctionTask.function must be"),
        ("Run.tasks = (@FunctionTask(),)\nFunctionTask.function = @OWN.rewart", "OWN.py defines no 'rewart'"),
        (TASK + "\nReverse.lenght = 3", "OWN.Reverse has no parameter 'lenght'"),
        ("Recipe.loss = @OWN.Clip()\nClip.eps = 0.5", "eps 0.5 is a bad number: take another (OWN.Clip.eps = 0.5 from"),
    ],
)
def test_what_is_wrong_with_ones_own_classes_is_said_in_one_line(folder: Path, line: str, says: str) -> None:
    assert says in complaint(folder, line)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_this_name", "OWN.py:1: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("x = (", "OWN.py:1: '(' was never closed"),
        ("\n1 / 0", "OWN.py:2: ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_its_line(folder: Path, text: str, says: str) -> None:
    (folder / f"{module(folder)}.py").write_text(textwrap.dedent(text))
    assert says in complaint(folder, TASK)


def test_a_module_with_the_name_of_another_is_refused(folder: Path) -> None:
    (folder / "random.py").write_text(OWN)
    assert "random.py has the name of another module" in complaint(folder, "Run.tasks = (@random.Reverse(),)")
