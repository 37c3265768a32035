"""Import from here what a task of your own is made of; the names are the same in a checkout and in a wheel."""

from tasks.code.runs import run_program, run_python
from tasks.own import FunctionTask, RewardTask
from tasks.task import Task
from tasks.types import Prompt, Verdict

__all__ = ["FunctionTask", "Prompt", "RewardTask", "Task", "Verdict", "run_program", "run_python"]
