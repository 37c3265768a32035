"""Tasks without a run, by the names of their classes: `my_task.Reverse`, `ReasoningGym`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SkipValidation

from scalelab.errors import LabError
from scalelab.experiment.imports import Imports
from scalelab.experiment.lab import LAB
from scalelab.experiment.overrides import set_statement
from scalelab.experiment.resolve import Heading, resolve_statements
from scalelab.experiment.syntax import Binding, Mention
from tasks.errors import TaskError
from tasks.task import Task, require_task


@dataclass(frozen=True)
class Tasks:
    """The tasks, as the root of a configuration without a run."""

    tasks: tuple[SkipValidation[Task], ...]


def is_class_name(name: str) -> bool:
    """True if a name is that of a class: `module.Class`, or one of the lab's, perhaps with a gin scope before it."""
    name = name.rpartition("/")[2]
    return "." in name or name in LAB.classes


def single_tasks(names: Sequence[str], sets: Sequence[str] = (), folder: Path | None = None) -> list[Task]:
    """Make and check tasks, as an experiment that binds them would.

    Args:
        names: classes, `module.Class` or one of the lab's; `scope/Class` for several of one class.
        sets: bindings of their fields, such as `my_task.Reverse.letters=7`.
        folder: where modules are looked for; None is the working folder.

    Raises:
        LabError: there is no such class, it is no task, or a binding does not fit or has no effect.
    """
    origin = f"--task {' '.join(names)}"
    registry = LAB.opened(Imports([folder or Path.cwd()], allowed=True)).rooted(Tasks)
    parts = [name.rpartition("/") for name in names]
    mentions = tuple(Mention(name, scope) for scope, _, name in parts)
    statement = registry.statement(Binding("", Tasks.__name__, "tasks", mentions, origin))
    bindings = [set_statement(text, registry) for text in sets]
    resolved = resolve_statements(registry, Heading("tasks", "", origin), [statement], bindings)
    tasks = list(resolved.run.tasks)
    for task in tasks:
        try:
            require_task(task)
        except TaskError as problem:
            raise LabError(f"{origin}: {problem}") from None
    names_taken = [task.name for task in tasks]
    if len(set(names_taken)) < len(names_taken):
        raise LabError(f"{origin}: the tasks are called {', '.join(names_taken)}: give each a name of its own by --set")
    return tasks
