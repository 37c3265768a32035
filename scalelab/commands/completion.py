"""Print a script that completes subcommands, options, experiments and files at the Tab key.

Examples:
  scalelab completion bash > ~/.local/share/bash-completion/completions/scalelab
  scalelab completion zsh > ~/.zfunc/_scalelab          # a folder of your fpath
  scalelab completion fish > ~/.config/fish/completions/scalelab.fish
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

SHELLS = ("bash", "zsh", "fish")

FOLDERS, FILES = ("DIR", "FOLDER", "RUN"), ("FILE", "SOURCE", "CHECKPOINT", "RUNS")
"""Metavars of arguments that are paths."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    print(shtab.complete(whole_parser(), shell=args.shell))


def whole_parser() -> argparse.ArgumentParser:
    """Make one parser of all subcommands, as a completion needs it."""
    from scalelab.cli import COMMANDS, command_parser
    from scalelab.experiment import listing

    experiments = [entry.name for entry in listing()[0]]
    whole = argparse.ArgumentParser("scalelab")
    whole.add_argument("--version", action="version", version="")
    subparsers = whole.add_subparsers()
    for name, summary in COMMANDS.items():
        parser, _ = command_parser(name)
        part = subparsers.add_parser(name, help=summary)
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                _complete(action, experiments)
                part._add_action(action)
    return whole


def _complete(action: argparse.Action, experiments: list[str]) -> None:
    """Describe the values of an argument to the shell's completion."""
    if action.metavar == "EXPERIMENT":
        action.choices = experiments
    elif action.metavar in FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif action.type is Path or action.metavar in FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
