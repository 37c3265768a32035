"""A process that rehearses roles: it imports torch and the lab once, then forks for every role.

Its argument is a file with a pickled `RoleTasks`. It prints a line of JSON with the number of every role, and that of
the first role that is the same to a rehearsal. Then numbers of roles to begin come on its standard input, a line each.
For every role that ends, it prints a line of JSON (`RoleEnd`); the result itself goes into a file.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

from moe.model.kernels import GPU_PACKAGES
from scalelab.imports import quick_imports
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings

MEMORY_GIB = "SIMULATED_MEMORY_GIB"
"""Variable that a simulated CUDA runtime reads, and that is set where there is one."""
_POLL = 0.05
"""Seconds between two looks at the processes."""


@dataclass(frozen=True)
class RoleTasks:
    """The task of a worker: roles, and where their results go.

    Attributes:
        roles: runs and roles to rehearse, by number.
        folder: folder for the results, `NUMBER.json` as `RoleResult.to_json` has it.
        deadline: seconds for each.
    """

    roles: dict[int, tuple[RehearsalSettings, Role]]
    folder: Path
    deadline: float


@dataclass(frozen=True)
class RoleEnd:
    """The end of the process of one role.

    Attributes:
        number: of the role.
        seconds: that it took.
        problem: why it has no result; empty if it has one.
        late: whether it was ended at its deadline.
    """

    number: int
    seconds: float
    problem: str = ""
    late: bool = False


@dataclass
class _Child:
    number: int
    began: float
    late: bool = False


def main() -> None:
    """Rehearse the roles and tell of each when it has ended."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    _hide_gpu_packages()
    tasks: RoleTasks = pickle.loads(Path(sys.argv[1]).read_bytes())
    kinds = sorted({role.kind for _, role in tasks.roles.values()})
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the lines
    with quick_imports():
        if MEMORY_GIB in os.environ:
            importlib.import_module("scalelab.rehearse.te_shapes").offer()
        modules = {kind: importlib.import_module(f"scalelab.rehearse.{kind}") for kind in kinds}
    if MEMORY_GIB in os.environ:
        importlib.import_module("scalelab.rehearse.ranks").keep_device_in_forks()
    print(json.dumps(_same(tasks, modules)), file=lines, flush=True)
    late = False
    for end in _ends(tasks, modules):
        print(json.dumps(asdict(end)), file=lines, flush=True)
        late = late or end.late
    if late:  # a role that was killed may have left processes of its own, which are in this one's group
        os.killpg(0, signal.SIGKILL)


def _same(tasks: RoleTasks, modules: Mapping[str, ModuleType]) -> dict[int, int]:
    """For each role, the first that is the same to a rehearsal; it is its own where its module does not say."""
    firsts: list[tuple[object, int]] = []
    same = {}
    for number, (setting, role) in tasks.roles.items():
        same[number] = number
        subject = getattr(modules[role.kind], "subject", None)
        if subject is not None:
            with suppress(Exception):  # what cannot be made or compared, as a user's arrays, is rehearsed, and says why
                what = subject(setting), replace(role, stands_for=0)
                same[number] = next((first for seen, first in firsts if seen == what), number)
                firsts.append((what, number))
    return same


def _hide_gpu_packages() -> None:
    """Let imports of packages for GPUs fail as where they are not installed.

    Megatron takes their optimiser and norms wherever it finds them, and their kernels want a driver and real tensors.
    """
    for name in (*GPU_PACKAGES, "flash_attn", "apex", "amp_C", "fused_weight_gradient_mlp_cuda"):
        sys.modules[name] = None  # type: ignore[assignment]


def _ends(tasks: RoleTasks, modules: Mapping[str, ModuleType]) -> Iterator[RoleEnd]:
    """Start a process for every role that is to begin, and yield their ends as they come."""
    running, more, told = dict[int, _Child](), True, b""
    while running or more:
        if more and select.select([0], [], [], 0 if running else _POLL)[0]:
            said = os.read(0, 4096)
            more = bool(said)
            *numbers, told = (told + said).split(b"\n")
            for number in map(int, numbers):
                running[_start(tasks, modules, number)] = _Child(number, time.monotonic())
        pid, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if pid in running:
            child = running.pop(pid)
            problem = _problem(tasks, child, os.waitstatus_to_exitcode(status))
            yield RoleEnd(child.number, time.monotonic() - child.began, problem, child.late)
            continue
        for pid, child in running.items():
            if not child.late and time.monotonic() - child.began > tasks.deadline:
                child.late = True
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)


def _start(tasks: RoleTasks, modules: Mapping[str, ModuleType], number: int) -> int:
    """Fork a process that rehearses one role; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        tempfile.tempdir = str(tasks.folder)  # which is gone afterwards, however the role ends
        said = os.open(tasks.folder / f"{number}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        setting, role = tasks.roles[number]
        result = modules[role.kind].rehearse(setting, role)
        (tasks.folder / f"{number}.json").write_text(json.dumps(result.to_json()))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # what the parent has open is the parent's to close


def _problem(tasks: RoleTasks, child: _Child, code: int) -> str:
    if child.late:
        return too_late(tasks.deadline)
    if code == 0 and (tasks.folder / f"{child.number}.json").is_file():
        return ""
    said = (tasks.folder / f"{child.number}.log").read_text(errors="replace")
    return ended(code, said)


def too_late(deadline: float) -> str:
    """The message that a process passed its deadline."""
    return f"took more than {deadline:g} s: raise --deadline, or look for what hangs"


def ended(code: int, said: str) -> str:
    """The message that a process ended without a result."""
    last = (said.strip().splitlines() or ["nothing"])[-1]
    return f"its process ended with code {code} and said last: {last[:300]}"


if __name__ == "__main__":
    main()
