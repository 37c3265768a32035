"""Make pages of the site from the program itself: the command line's page from what `--help` prints."""

from __future__ import annotations

import os
from typing import Any

from mkdocs.structure.files import File, Files

from scalelab.cli import COMMANDS, command_parser


def on_files(files: Files, config: Any) -> Files:
    """Add commands.md."""
    files.append(File.generated(config, "commands.md", content=commands_page()))
    return files


def commands_page() -> str:
    """Arguments and examples of every subcommand, as Markdown."""
    os.environ["COLUMNS"] = "96"
    parts = [
        "# Command line\n",
        "`--json` prints one JSON object. The exit code is 0 only if the command did what it said.",
    ]
    for name, summary in COMMANDS.items():
        text = command_parser(name)[0].format_help()
        parts.append(f"\n## scalelab {name}\n\n{summary[0].upper()}{summary[1:]}.\n\n```text\n{text}```")
    return "\n".join(parts) + "\n"
