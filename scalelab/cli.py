"""The command line: find the subcommand, import it alone, and turn a user's mistake into one line on stderr.

Each subcommand is a module of `scalelab.commands` with `add_arguments(parser)` and `run(args) -> int | None`.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import NoReturn

from moe.errors import MoeError
from scalelab import __version__
from scalelab.errors import BROKEN_OFF, FAILED, INTERRUPTED, USAGE_ERROR, BrokenOffError, LabError
from scalelab.terminal import plain_output, plain_text
from tasks.errors import TaskError

COMMANDS: dict[str, str] = {
    "list": "experiments with one-line descriptions",
    "show": "what an experiment resolves to, and where each value comes from",
    "simulate": "the real schedule on a simulated clock: speed, idle shares, staleness, best split",
    "plan": "parameters, memory per rank, placement, step time, GPU-hours; needs no GPU",
    "rehearse": "every role of a layout at full size on fake tensors; needs no GPU",
    "sft": "the model that RL starts from, fine-tuned on reasoning traces",
    "run": "an experiment, or a family of them, to its fits and report",
    "launch": "job script of a run for Slurm, Ray or Kubernetes: joins counted, nodes watched, requeue resumes",
    "read": "what a log holds, as fit and compare take it: columns, what was stitched, dropped, converted",
    "fit": "sigmoid fits per task: R0, A, B, C_mid",
    "forecast": "pass rate at further compute, compute for a target, extend or stop",
    "decide": "which recipe, extend or stop, next seed or setting: one page for a budget",
    "design": "seeds and evaluations that it takes to tell recipes apart",
    "compare": "which runs are better at the compute that all have spent, with probabilities",
    "law": "A, B and C_mid across batch, length and other axes; what to run next",
    "view": "runs as a live web page: the answer, curves, forecasts, completions, time line",
    "demo": "that page on recorded runs, which come with the package",
    "report": "the same page as one file; figures for papers, a summary in Markdown",
    "rollouts": "completions of a run, read in the terminal",
    "eval": "mean@k and pass@k of a model on held-out prompts",
    "grade": "answers in a file, by the verifiers alone",
    "data": "rows of a data set that cannot teach: check FILE",
    "task": "a task of your own before a run: rewards that leak, hang or lie: check FILE",
    "status": "what a run and every actor of it is doing now, or how it ended",
    "check": "whether the books of a run balance, by its files alone",
    "import": "a Hugging Face folder to a Megatron checkpoint, which loads at any layout",
    "export": "a checkpoint of any layout to a Hugging Face folder",
    "doctor": "what this machine can do: engines, GPUs, sandbox tier, with fixes",
    "completion": "tab completion for your shell",
}
"""Subcommand → what it does, in the order of `scalelab --help`. The module is `scalelab.commands.NAME`, with `_` behind
a name that Python keeps for itself."""

OTHER_WORDS: dict[str, str] = {
    "train": "run",
    "finetune": "sft",
    "fine-tune": "sft",
    "start": "run",
    "submit": "launch",
    "sbatch": "launch",
    "resume": "run",
    "ls": "list",
    "experiments": "list",
    "config": "show",
    "diff": "show",
    "evaluate": "eval",
    "test": "eval",
    "verify": "grade",
    "score": "grade",
    "predict": "forecast",
    "extrapolate": "forecast",
    "rank": "compare",
    "plot": "report",
    "html": "report",
    "estimate": "plan",
    "memory": "plan",
    "check-install": "doctor",
    "env": "doctor",
    "watch": "view",
    "tail": "view",
    "ui": "view",
    "serve": "view",
    "dashboard": "view",
    "samples": "rollouts",
    "completions": "rollouts",
    "audit": "check",
    "ps": "status",
    "top": "status",
    "dry-run": "rehearse",
}
"""Words that other tools use → the subcommand that does it here."""

CORE = ("numpy", "scipy", "matplotlib", "gin", "jinja2", "pydantic", "rich", "shtab", "starlette", "uvicorn", "pyarrow")
"""Packages of the core, by the names that are imported; the Python of a checkout may lack them."""

COLOURED = ("rollouts",)
"""Subcommands that colour what they print, and make every text of a file plain themselves."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "cpu": (
        *("torch", "megatron", "vllm", "ray", "transformers", "tokenizers", "safetensors", "psutil", "tensorboard"),
        *("datasets", "evaluate", "sympy", "reasoning_gym", "sortedcontainers"),
    ),
    "trackers": ("wandb", "mlflow", "trackio"),
    "frame": ("pandas",),
}
"""Extra of the package → what it installs, by the names that are imported."""


class Parser(argparse.ArgumentParser):
    """argparse with errors on one line and a hint to the nearest name."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with the code of wrong usage."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: object = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse all arguments; for an unknown one name the nearest known one."""
        known, unknown = self.parse_known_args(args)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}")
        return known

    def _hint(self, unknown: Sequence[str]) -> str:
        option, equals, value = unknown[0].partition("=")
        if not option.startswith("-"):
            return ""
        options = self._option_string_actions
        if "--set" in options and (meant := fields_named(option.lstrip("-").replace("-", "_"))):
            value = value if equals else next((one for one in unknown[1:2] if not one.startswith("-")), "…")
            return f"; did you mean {' or '.join(f'--set {field}={value}' for field in meant)}?"
        words = {declared.lstrip("-"): declared for declared in options}
        near = difflib.get_close_matches(option.lstrip("-"), words, n=1, cutoff=0.6)
        return f"; did you mean {words[near[0]]}?" if near else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: arguments after the program's name; None takes them from `sys.argv`.

    Returns:
        Exit code: 0 if the command did what it said, 1 if it could not, 2 for wrong usage, 75 if the machine
        broke off a run that `--resume` goes on with, 130 after Ctrl-C.
    """
    try:
        return _dispatch(sys.argv[1:] if argv is None else argv, from_shell=argv is None)
    except KeyboardInterrupt:
        print("scalelab: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader went away, as in `scalelab list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except BrokenOffError as error:
        _say(str(error))
        return BROKEN_OFF
    except (LabError, MoeError, TaskError) as error:
        _say(str(error))
    except OSError as error:
        _say(_os_error(error))
    except ModuleNotFoundError as error:
        missing = _missing(error)
        if missing is None:
            raise
        _say(missing)
    return FAILED


def _say(message: str) -> None:
    """Print a message on one line, without control characters: it may quote a name or a value from any file."""
    print("scalelab:", plain_text(message), file=sys.stderr)


def command_parser(name: str) -> tuple[Parser, ModuleType]:
    """Import a subcommand, and make its parser.

    Args:
        name: a key of `COMMANDS`.
    """
    module = importlib.import_module(f"scalelab.commands.{name}{'_' * keyword.iskeyword(name)}")
    parser = Parser(f"scalelab {name}", COMMANDS[name], module.__doc__)
    module.add_arguments(parser)
    return parser, module


def fields_named(name: str) -> list[str]:
    """Find the fields of an experiment that have a name, as CLASS.FIELD; `learning_rate` finds `lr`, too."""
    from scalelab.experiment.lab import LAB

    names = {name, {"learning_rate": "lr", "batch_size": "prompts_per_step"}.get(name, name)}
    return [f"{owner}.{field}" for owner, cls in LAB.classes.items() for field in LAB.parameters(cls) if field in names]


def _dispatch(argv: Sequence[str], from_shell: bool) -> int:
    parser = _overview()
    if not argv or argv[0] == "help":
        if len(argv) > 1:
            argv = [argv[1], "--help"]
        else:
            parser.print_help()
            return 0
    first, *rest = argv
    if first.startswith("-"):
        parser.parse_args([first])
        parser.error("give a subcommand first")
    if first not in COMMANDS:
        parser.error(f"unknown subcommand {first!r}: {_nearest_command(first)}")
    subparser, module = command_parser(first)
    arguments = subparser.parse_args(rest)
    arguments.from_shell = from_shell
    with plain_output() if first not in COLOURED else nullcontext():  # whatever it prints of a stranger's file
        code = module.run(arguments)
    sys.stdout.flush()
    return code or 0


def _overview() -> Parser:
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    example = (
        "examples:\n"
        "  scalelab run quickstart                 train a small model, fit its curves, write a report\n"
        "  scalelab fit points.csv --plot fit.png  fit the curves of your own logs\n"
        "  scalelab help run                       what a subcommand takes"
    )
    parser = Parser("scalelab", "A lab for the science of scaling RL.", f"subcommands:\n{table}\n\n{example}")
    parser.usage = "scalelab SUBCOMMAND [ARGUMENT]..."
    parser.add_argument("--version", action="version", version=f"scalelab {__version__}")
    return parser


def _nearest_command(word: str) -> str:
    if word in OTHER_WORDS:
        return f"did you mean {OTHER_WORDS[word]!r}?"
    near = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}"


def _os_error(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"no space left on the disk{where}; free some, or use another disk. What was recorded so far is kept"
    return f"{error.strerror or error}{where}"


def _missing(error: ModuleNotFoundError) -> str | None:
    """Name the extra that brings a missing module; None if no extra does, which makes it a bug."""
    module = (error.name or "").partition(".")[0]
    if module in CORE:
        return (
            f"{module} is not installed for {sys.executable}: in a checkout `make install` makes an environment with "
            "the whole lab, `pip install .` brings what curves, plans and pages need"
        )
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        return None
    if extra == "cpu":
        how = "`make install` in a checkout makes an environment with all of it (docs/install.md)"
        return f"this needs the lab's engines, and {module} is not installed: {how}. Curves need none of them"
    return f"this needs {module}, which is not installed: pip install 'scalelab[{extra}]'"


if __name__ == "__main__":
    sys.exit(main())
