"""Rehearse roles side by side, each in its own process, so that one that crashes does not end the others."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from scalelab.rehearse.forks import RoleEnd, RoleTasks, ended, too_late
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings

ROOT = Path(__file__).parents[2]
"""Folder of the lab's packages."""
SHORT = "/tmp"
"""Folder with a short path."""
REHEARSAL = "SCALELAB_REHEARSAL"
"""Variable of all processes of a rehearsal: its folder."""
END_SECONDS = 20.0
"""Limit for their end."""


@dataclass(frozen=True)
class Interpreter:
    """The Python interpreter of a rehearsal.

    Attributes:
        python: its path.
        environment: variables that it gets beside those of this process.
    """

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


def rehearse_all(
    setting: RehearsalSettings,
    roles: Sequence[Role],
    interpreters: Mapping[str, Interpreter],
    jobs: int,
    deadline: float,
    done: Callable[[RoleResult, float], None],
) -> list[RoleResult]:
    """Rehearse roles and return their results, in their order.

    One worker for each kind of role imports what they need, and forks for every role.

    Args:
        setting: the run.
        roles: the roles; those of a kind stand together.
        interpreters: the Python for each kind of role.
        jobs: processes at a time.
        deadline: seconds for each.
        done: told of every result as it comes, with the seconds that it took.
    """
    found: list[RoleResult] = []
    for kind, alike in groupby(roles, key=lambda role: role.kind):
        mine = tuple(alike)
        results: dict[int, RoleResult] = {}
        with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=_place(kind)) as folder:
            tasks = RoleTasks(setting, mine, Path(folder), jobs, deadline)
            for end in _rehearse(tasks, interpreters[kind]):
                result = results[end.number] = _result(tasks, end)
                done(result, end.seconds)
        found += [results[number] for number in range(len(mine))]
    return found


def _place(kind: str) -> str | None:
    """Folder for a kind's files; a short one for Ray, whose sockets' paths have at most 107 bytes."""
    return SHORT if kind == "cluster" and os.access(SHORT, os.W_OK | os.X_OK) else None


def _result(tasks: RoleTasks, end: RoleEnd) -> RoleResult:
    role = tasks.roles[end.number]
    if end.problem:
        return RoleResult(role.name, role.kind, role.stands_for, problems=[end.problem], late=end.late)
    return RoleResult.from_json(json.loads((tasks.folder / f"{end.number}.json").read_text()))


def _rehearse(tasks: RoleTasks, interpreter: Interpreter) -> Iterator[RoleEnd]:
    """Rehearse roles in a worker, and yield their ends; roles not begun when it dies end with it."""
    began, left = time.monotonic(), set(range(len(tasks.roles)))
    # imports may take as long as a role
    limit = tasks.deadline * (1 + -(-len(tasks.roles) // tasks.jobs))
    late = threading.Event()
    with tempfile.TemporaryFile() as said:
        worker = subprocess.Popen(
            [interpreter.python, "-m", "scalelab.rehearse.forks"],
            # Ray's processes take a name, which is not to be written over their variables
            env={**_environment(interpreter), REHEARSAL: str(tasks.folder), "SPT_NOENV": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )

        def give_up() -> None:
            late.set()
            _kill(worker)

        timer = threading.Timer(limit, give_up)
        timer.start()
        code: int | None = None
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            with suppress(BrokenPipeError):  # it has ended, and says why below
                worker.stdin.write(pickle.dumps(tasks))
                worker.stdin.close()
            for line in worker.stdout:
                end = RoleEnd(**json.loads(line))
                left.discard(end.number)
                yield end
            code = worker.wait()
        finally:
            timer.cancel()
            if code != 0:  # its processes may be there still
                _kill(worker)
            worker.wait()
            _end_others(tasks.folder)  # a role that was killed leaves some, though its worker ends in order
        said.seek(0)
        problem = (
            too_late(tasks.deadline)
            if late.is_set()
            else ended(worker.returncode, said.read().decode(errors="replace"))
        )
    for number in sorted(left):
        yield RoleEnd(number, time.monotonic() - began, problem, late.is_set())


def _environment(interpreter: Interpreter) -> dict[str, str]:
    # the user's modules, and not the packages of this Python, which may not be those of the other
    paths = [p for p in sys.path if "site-packages" not in p and not p.startswith(sys.base_prefix)]
    path = os.pathsep.join([str(ROOT), *filter(None, paths)])
    # a real GPU is hidden: forks could not use it once torch has counted it
    # vLLM's build for GPUs finds no device without a driver, and has the CPU's models too
    vllm = {"VLLM_TARGET_DEVICE": "cpu"}
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **vllm}
    return {**os.environ, **own, **interpreter.environment}


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """End a worker and all its processes, which are a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)


def _end_others(folder: Path) -> None:
    """End what a rehearsal left in sessions of its own, as Ray does, and wait: it would write into the folder."""
    until = time.monotonic() + END_SECONDS
    while (left := _others(folder)) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _others(folder: Path) -> list[int]:
    """Processes of a rehearsal by the variable that they have from it; those that have ended have none."""
    mark, found = f"{REHEARSAL}={folder}\0".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it is gone, or another user's
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found
