"""Single-turn tasksets of `verifiers` are tasks; what needs more than one answer is refused in one line.

The package needs an environment of its own, which `tools/install.sh` makes; `SCALELAB_VERIFIERS` names the interpreter
of another.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks import environments
from tasks.environments.task import VerifiersTask
from tasks.errors import TaskError
from tasks.task import require_task

_INSTALLED = Path(__file__).parents[2] / ".venv/verifiers/bin/python"
PYTHON = os.environ.get("SCALELAB_VERIFIERS") or (str(_INSTALLED) if _INSTALLED.exists() else "")
needs_verifiers = pytest.mark.skipif(not PYTHON, reason="needs SCALELAB_VERIFIERS")

SUMS = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: int

class Sum(vf.Task[Data]):
    @vf.reward(weight=3.0)
    async def right(self, task, trace) -> float:
        return float(trace.last_message.content.strip() == str(task.answer))

    @vf.reward
    async def short(self, trace) -> float:
        return 1.0 if len(trace.last_message.content) < 5 else -1.0

    @vf.reward(weight=0.0)
    async def watched(self, trace) -> float:
        return 77.0


from verifiers.v1.configs.taskset import TasksetConfig

class SumsConfig(TasksetConfig):
    count: int = 30

class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self):
        for n in range(self.config.count):
            yield Sum(Data(prompt=f"{n} + {n}?", system_prompt="Add.", answer=2 * n), self.config.task)

__all__ = ["Sums"]
"""
# One change to the taskset each, and what is said of it.
UNFIT = {
    "runtime": ("async def short(self, trace)", "async def short(self, trace, runtime)", "rewards that need a runtime"),
    "container": ("class Sum(vf.Task[Data]):", "class Sum(vf.Task[Data]):\n    NEEDS_CONTAINER = True", "a container"),
    "setup": ("    @vf.reward(w", "    async def setup(self, trace, runtime): pass\n    @vf.reward(w", "before or"),
    "weight": ("weight=0.0", "weight=-1.0", "a weight below 0"),
    "prompt": ('prompt=f"{n} + {n}?"', "prompt=None", "no prompt"),
}  # fmt: skip


FOREIGN = str(Path(environments.__file__).with_name("foreign"))
REFUSALS = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from verifiers_taskset import UnfitError, service
for name in sys.argv[3:]:
    try:
        service(json.dumps({"taskset": name, "settings": {}, "most": 10}).encode())
    except UnfitError as error:
        print(error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_sums.py").write_text(SUMS)
    return tmp_path


def task(folder: Path, **more: Any) -> VerifiersTask:
    return VerifiersTask(taskset="my_sums", python=PYTHON, folder=str(folder), held_out_size=10, workers=1, **more)


@pytest.mark.slow
@needs_verifiers
def test_a_taskset_is_asked_and_scored_by_its_own_rewards(folder: Path) -> None:
    sums = task(folder, settings={"count": 40})
    require_task(sums)
    assert (sums.name, sums.size, len(sums.held_out(10))) == ("my_sums", 30, 10)
    assert {one.id for one in sums.held_out(10)}.isdisjoint({sums.prompt(n).id for n in range(60)})
    assert sums.describe()["verifiers"]
    prompt = sums.prompt(0)
    assert [message["role"] for message in prompt.chat] == ["system", "user"]
    n = int(prompt.chat[1]["content"].split()[0])
    verifier = pickle.loads(pickle.dumps(sums)).verifier()
    answers = [str(2 * n), "x", f"It is {2 * n}.", "\ud800"]
    try:
        got = verifier.verify([(prompt, answer) for answer in answers])
    finally:
        verifier.close()
    assert [(one.outcome, one.reward) for one in got] == [("passed", 1.0), *[("failed", r) for r in (0.25, 0.0, 0.25)]]
    assert got[1].parts == {"right": 0.0, "short": 1.0}


@pytest.mark.slow
@needs_verifiers
def test_what_needs_more_than_an_answer_is_refused(folder: Path) -> None:
    """One through the task, all through what its process runs, since the package takes seconds to import."""
    for why, (old, new, _) in UNFIT.items():
        assert old in SUMS
        (folder / f"with_{why}.py").write_text(SUMS.replace(old, new, 1))
    with pytest.raises(TaskError, match=UNFIT["prompt"][2]) as caught:
        replace(task(folder), taskset="with_prompt").prompt(0)
    assert "\n" not in str(caught.value)
    done = subprocess.run(
        [PYTHON, "-c", REFUSALS, FOREIGN, str(folder), *(f"with_{why}" for why in UNFIT)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    said = done.stdout.splitlines()
    assert len(said) == len(UNFIT), done.stderr[-2000:]
    assert all(says in line for (*_, says), line in zip(UNFIT.values(), said, strict=True)), said


@pytest.mark.slow
@needs_verifiers
def test_an_unknown_taskset_and_wrong_settings_are_named(folder: Path) -> None:
    with pytest.raises(TaskError, match="no_such_taskset"):
        VerifiersTask(taskset="no_such_taskset", python=PYTHON).prompt(0)
    with pytest.raises(TaskError, match="colour"):
        task(folder, settings={"colour": 3}).prompt(0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"taskset": ""}, "name a taskset"),
        ({"taskset": "a", "python": "/no/such/python"}, "interpreter of an environment"),
        ({"taskset": "a", "python": sys.executable, "most": 0}, "most is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        VerifiersTask(**settings)


def test_an_environment_without_the_package_is_said() -> None:
    missing = subprocess.run([sys.executable, "-c", "import verifiers"], capture_output=True, check=False).returncode
    assert missing, "the lab's own environment has no verifiers"
    with pytest.raises(TaskError, match="No module named 'verifiers'"):
        VerifiersTask(taskset="a", python=sys.executable).prompt(0)
