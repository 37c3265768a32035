"""Rehearse roles side by side, each in its own process, so that one that crashes does not end the others."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

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
TASKS, SAID = "tasks", "said"
"""Files of a worker: its tasks, and what it and its libraries say."""
Events: TypeAlias = "queue.SimpleQueue[tuple[_Worker, bytes | None]]"
"""Lines that workers say, and None of one that has ended."""


@dataclass(frozen=True)
class Interpreter:
    """The Python interpreter of a rehearsal.

    Attributes:
        python: its path.
        environment: variables that it gets beside those of this process, with their values.
    """

    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RoleTask:
    """A role of a run to rehearse.

    Attributes:
        setting: the run.
        role: its role.
        interpreter: the Python for it.
    """

    setting: RehearsalSettings
    role: Role
    interpreter: Interpreter


def tasks_of(
    setting: RehearsalSettings, roles: Sequence[Role], interpreters: Mapping[str, Interpreter]
) -> list[RoleTask]:
    """Tasks for the roles of one run; `interpreters` has the Python for each kind of role."""
    return [RoleTask(setting, role, interpreters[role.kind]) for role in roles]


def rehearse_all(
    tasks: Sequence[RoleTask], jobs: int, deadline: float, done: Callable[[int, RoleResult, float], None]
) -> list[RoleResult]:
    """Rehearse roles, of one run or of several, and return their results in their order.

    One worker for each interpreter imports what its roles need, and forks for every role. Roles of several runs that
    are the same to a rehearsal (`subject` of their kind's module) are rehearsed once.

    Args:
        tasks: the roles.
        jobs: roles at a time; a node of Ray, which mostly waits, comes beside them.
        deadline: seconds for each.
        done: told of every role as its result comes: its number, the result, and the seconds that it took; 0 for one
            that is the same as another run's.
    """
    found: dict[int, RoleResult] = {}
    limit = whole_limit(tasks, jobs, deadline)
    events: Events = queue.SimpleQueue()
    free = {True: 1, False: jobs}  # for nodes of Ray, and for others
    with ExitStack() as stack:
        workers = []
        for interpreter, numbers in _by_interpreter(tasks).items():
            mine = {number: tasks[number] for number in numbers}
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearsal-", dir=_place(mine)))
            workers.append(worker := _Worker(mine, interpreter, Path(folder), deadline, events))
            stack.callback(worker.end)
            worker.start(limit)
        while len(found) < len(tasks):
            for worker in workers:
                while worker.waiting and free[worker.of_nodes]:
                    free[worker.of_nodes] -= 1
                    worker.begin()
            worker, line = events.get()  # each worker ends by its limit, and says so
            before = len(worker.running)
            for number, result, seconds in worker.hear(line):
                found[number] = result
                done(number, result, seconds)
            free[worker.of_nodes] += before - len(worker.running)
    return [found[number] for number in range(len(tasks))]


def whole_limit(tasks: Sequence[RoleTask], jobs: int, deadline: float) -> float:
    """Seconds in which all roles end if none takes longer than its deadline, and imports no longer than a role."""
    nodes = sum(task.role.kind == "cluster" for task in tasks)  # one after the other
    return deadline * (1 + max(nodes, -(-len(tasks) // jobs)))


def _by_interpreter(tasks: Sequence[RoleTask]) -> dict[Interpreter, list[int]]:
    numbers: dict[Interpreter, list[int]] = {}
    for number, task in enumerate(tasks):
        numbers.setdefault(task.interpreter, []).append(number)
    return numbers


def _place(tasks: Mapping[int, RoleTask]) -> str | None:
    """Folder for the files of roles; a short one for Ray, whose sockets' paths have at most 107 bytes."""
    nodes = any(task.role.kind == "cluster" for task in tasks.values())
    return SHORT if nodes and os.access(SHORT, os.W_OK | os.X_OK) else None


class _Worker:
    """A process that rehearses the roles of one interpreter, each when it is told to begin it.

    Args:
        tasks: the roles by number.
        interpreter: its Python.
        folder: for its files.
        deadline: seconds for each role.
        events: takes what it says, a line at a time, and None when it has ended.

    Attributes:
        of_nodes: whether its roles are nodes of Ray.
        waiting: roles that may begin; none until it has imported what they need.
        running: roles that have begun.
    """

    def __init__(
        self,
        tasks: Mapping[int, RoleTask],
        interpreter: Interpreter,
        folder: Path,
        deadline: float,
        events: Events,
    ) -> None:
        self.of_nodes = all(task.role.kind == "cluster" for task in tasks.values())
        self.waiting, self.running = list[int](), set[int]()
        self._left, self._same = dict(tasks), dict[int, int]()
        self._interpreter, self._folder, self._deadline, self._events = interpreter, folder, deadline, events
        self._began, self._late = time.monotonic(), False
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self, limit: float) -> None:
        """Start the process, which is ended after so many seconds."""
        roles = {number: (task.setting, task.role) for number, task in self._left.items()}
        (self._folder / TASKS).write_bytes(pickle.dumps(RoleTasks(roles, self._folder, self._deadline)))
        with (self._folder / SAID).open("wb") as said:
            self._process = subprocess.Popen(
                [self._interpreter.python, "-m", "scalelab.rehearse.forks", str(self._folder / TASKS)],
                # Ray's processes take a name, which is not to be written over their variables
                env={**_environment(self._interpreter), REHEARSAL: str(self._folder), "SPT_NOENV": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        self._timer = threading.Timer(limit, self._give_up, (self._process,))
        self._timer.daemon = True
        self._timer.start()
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put((self, line))
        self._events.put((self, None))

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        self._late = True
        _kill(process)

    def begin(self) -> None:
        """Let it begin the role that waits longest."""
        number = self.waiting.pop(0)
        self.running.add(number)
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the next event says
            self._process.stdin.write(f"{number}\n".encode())
            self._process.stdin.flush()

    def hear(self, line: bytes | None) -> Iterator[tuple[int, RoleResult, float]]:
        """Take a line of its; yields number, result and seconds of the roles that have ended with it.

        Roles that have not when the process ends, end with it.
        """
        if line is None:
            self.waiting.clear()
            for number in [*self._left]:
                yield self._ended(RoleEnd(number, time.monotonic() - self._began, self._why(), self._late))
        elif not self._same:
            self._same = {int(number): other for number, other in json.loads(line).items()}
            self.waiting += [number for number, other in self._same.items() if number == other]
        else:
            end = RoleEnd(**json.loads(line))
            for number in [number for number, other in self._same.items() if other == end.number]:
                yield self._ended(replace(end, number=number, seconds=end.seconds * (number == end.number)), end.number)
            if not self._left and self._process is not None:
                _let_go(self._process)

    def _ended(self, end: RoleEnd, rehearsed: int = -1) -> tuple[int, RoleResult, float]:
        role = self._left.pop(end.number).role
        self.running.discard(end.number)
        if end.problem:
            result = RoleResult(role.name, role.kind, role.stands_for, problems=[end.problem], late=end.late)
        else:
            result = RoleResult.from_json(json.loads((self._folder / f"{rehearsed}.json").read_text()))
        return end.number, replace(result, stands_for=role.stands_for), end.seconds

    def _why(self) -> str:
        """Say why it ended before its roles."""
        assert self._process is not None
        if self._late:
            return too_late(self._deadline)
        code = self._process.wait()
        return ended(code, (self._folder / SAID).read_text(errors="replace"))

    def end(self) -> None:
        """End it and what it left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            _let_go(self._process)
            code: int | None = None
            if not self._left:
                with suppress(subprocess.TimeoutExpired):
                    code = self._process.wait(END_SECONDS)
            if code != 0:  # its processes may be there still
                _kill(self._process)
            self._process.wait()
        # a role that was killed leaves some, though its worker ends in order; and a signal may come while one starts
        _end_others(self._folder)


def _let_go(worker: subprocess.Popen[bytes]) -> None:
    """Let a worker end: no role is to begin any more."""
    assert worker.stdin is not None
    with suppress(BrokenPipeError):
        worker.stdin.close()


def _environment(interpreter: Interpreter) -> dict[str, str]:
    # the user's modules, and not the packages of this Python, which may not be those of the other
    paths = [p for p in sys.path if "site-packages" not in p and not p.startswith(sys.base_prefix)]
    path = os.pathsep.join([str(ROOT), *filter(None, paths)])
    # a real GPU is hidden: forks could not use it once torch has counted it
    # vLLM's build for GPUs finds no device without a driver, and has the CPU's models too
    vllm = {"VLLM_TARGET_DEVICE": "cpu"}
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **vllm}
    return {**os.environ, **own, **dict(interpreter.environment)}


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
