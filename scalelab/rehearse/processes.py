"""Rehearse roles side by side, each in a process of its own, so that what breaks one spares the others."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.rehearse.worker import RoleTask

ROOT = Path(__file__).parents[2]
"""Folder of the lab's packages."""


@dataclass(frozen=True)
class Interpreter:
    """The Python that rehearses.

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

    Args:
        setting: the run.
        roles: the roles.
        interpreters: the Python for each kind of role.
        jobs: processes at a time.
        deadline: seconds for each.
        done: told of every result as it comes, with the seconds that it took.
    """
    found: dict[str, RoleResult] = {}
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_rehearse, setting, role, interpreters[role.kind], deadline): role for role in roles}
        for future in as_completed(running):
            result, seconds = future.result()
            found[running[future].name] = result
            done(result, seconds)
    return [found[role.name] for role in roles]


def _rehearse(
    setting: RehearsalSettings, role: Role, interpreter: Interpreter, deadline: float
) -> tuple[RoleResult, float]:
    started = time.monotonic()
    # the user's modules, and not the packages of this Python, which may not be those of the other
    paths = [p for p in sys.path if "site-packages" not in p and not p.startswith(sys.base_prefix)]
    path = os.pathsep.join([str(ROOT), *filter(None, paths)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **interpreter.environment}
    with tempfile.TemporaryDirectory(prefix="scalelab-rehearsal-") as folder:
        answer = Path(folder) / "result.json"
        problem = None
        try:
            ended = subprocess.run(
                [interpreter.python, "-m", "scalelab.rehearse.worker"],
                input=pickle.dumps(RoleTask(setting, role, answer)),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=deadline,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"not done within {deadline:.0f} s: raise --deadline, or look for what hangs"
        else:
            if ended.returncode or not answer.is_file():
                said = ended.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
                problem = f"its process ended with code {ended.returncode} and said last: {said[-1][:300]}"
        if problem is not None:
            result = RoleResult(role.name, role.kind, role.stands_for, problems=[problem])
        else:
            result = RoleResult.from_json(json.loads(answer.read_text()))
    return result, time.monotonic() - started
