"""Import from here what a task of your own is made of; the names are the same in a checkout and in a wheel."""

from tasks.code.runs import run_program, run_python
from tasks.own import FileTask, FunctionTask, RewardTask
from tasks.servers import ask_server
from tasks.task import Task
from tasks.types import Prompt, Verdict

__all__ = [
    "FileTask",
    "FunctionTask",
    "Prompt",
    "RewardTask",
    "Task",
    "Verdict",
    "ask_server",
    "run_program",
    "run_python",
]
