"""A process that rehearses one role: a pickled `RoleTask` comes on its standard input, a result goes into a file."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings


@dataclass(frozen=True)
class RoleTask:
    """The task of a process: a role and where its result goes.

    Attributes:
        setting: the run.
        role: the role to rehearse.
        result: file for the result, JSON as `RoleResult.to_json` has it.
    """

    setting: RehearsalSettings
    role: Role
    result: Path


def main() -> None:
    """Rehearse the role and write its result."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    task: RoleTask = pickle.load(sys.stdin.buffer)
    if task.role.kind == "trainer":
        from scalelab.rehearse.trainer import rehearse
    else:
        from scalelab.rehearse.engine import rehearse
    result = rehearse(task.setting, task.role)
    task.result.write_text(json.dumps(result.to_json()))


if __name__ == "__main__":
    main()
