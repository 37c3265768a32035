"""A verifier of a run, for real and on this machine: its sandbox starts, and it tells right answers from wrong ones."""

from __future__ import annotations

import pickle
import time
from contextlib import closing

from scalelab.rehearse.explain import explain
from scalelab.rehearse.result import Phase, RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from tasks.check import try_verifier
from tasks.errors import TaskError
from tasks.task import Task


def rehearse(setting: RehearsalSettings, role: Role) -> RoleResult:
    """Start the verifiers of all graded tasks as a worker does, and let each grade; errors are recorded, not raised."""
    result = RoleResult(role.name, "verifier", role.stands_for)
    for name, do in (("start", _start), ("grade", _grade)):
        began, found = time.perf_counter(), len(result.problems)
        # a worker on another node gets the tasks like this
        tasks: tuple[Task, ...] = pickle.loads(pickle.dumps(setting.run.graded_tasks))
        for task in {task.name: task for task in tasks}.values():
            try:
                do(task, result)
            except Exception as error:  # whatever breaks is what a rehearsal is for
                result.problems.append(f"{name}: {explain(error)}")
        ok = len(result.problems) == found
        result.phases.append(Phase(name, ok, time.perf_counter() - began))
        if not ok:
            break
    return result


def _start(task: Task, result: RoleResult) -> None:
    """Make the verifier; of one that runs programs, say in what sandbox they would run here."""
    with closing(task.verifier()) as verifier:
        if hasattr(verifier, "sandbox"):
            tier = verifier.sandbox.describe()["tier"]
            result.not_rehearsed.append(f"the sandbox of the cluster's nodes: here, {task.name} has the tier {tier}")


def _grade(task: Task, result: RoleResult) -> None:
    if hasattr(task, "trial"):
        result.not_rehearsed.append(f"the problems of {task.name}: `scalelab data check` reads them")
    try:
        result.problems += [f"grade: {problem}" for problem in try_verifier(task)]
    except TaskError as problem:
        result.not_rehearsed.append(f"rewards of {task.name}, which has no prompts here: {problem}")
