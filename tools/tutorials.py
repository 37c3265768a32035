"""Run the commands of a page of the docs, and compare what they print with what the page shows.

    python tools/tutorials.py docs/tutorials/*.md            # exit code 1 if a page is not true
    python tools/tutorials.py --write docs/tutorials/*.md    # put what the commands print into the pages

A page is run from top to bottom in an empty folder. Its fenced blocks mean:

    ```csv title="points.csv"    a file of that name (any language)
    ```sh                        commands; a line `# exit 1` says that the last one is to fail
    ```text                      what the commands above it print; a line `…` stands for lines left out
    ```python                    code, run in one process per page, in the end

Numbers may differ by a tenth. A block after `<!-- not run: reason -->` is left alone; `<!-- put PATH as NAME -->` first
copies something of the checkout into the folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: [^>]+-->\n\Z")
PUT = re.compile(r"<!-- put (\S+) as (\S+) -->")
NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
SECONDS = 300
RELATIVE, ABSOLUTE = 0.1, 0.02


@dataclass
class FencedBlock:
    """A fenced block of a page."""

    kind: str
    title: str | None
    text: str
    start: int
    end: int


def blocks(page: str) -> list[FencedBlock]:
    """The fenced blocks that are run, in their order."""
    return [
        FencedBlock(found[1], found[2], found[3], found.start(3), found.end(3))
        for found in FENCE.finditer(page)
        if not NOT_RUN.search(page[: found.start()])
    ]


def run_page(path: Path, write: bool) -> list[str]:
    """Run a page.

    Args:
        path: the Markdown file.
        write: put what is printed into the page instead of comparing it.

    Returns:
        What is not true.
    """
    page, problems, printed, python = path.read_text(encoding="utf-8"), [], "", ""
    changed: list[tuple[FencedBlock, str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source, target in PUT.findall(page):
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(ROOT / source, folder / target)
        for block in blocks(page):
            line = f"{path}:{page.count(chr(10), 0, block.start)}"
            if block.title is not None:
                (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.kind == "sh":
                code, printed = shell(block.text, folder)
                if code != (1 if "# exit 1" in block.text else 0):
                    problems.append(f"{line}: exit code {code}: {printed.strip()[-500:]}")
            elif block.kind == "text":
                if write and not same(block.text, printed):
                    changed.append((block, printed))
                elif not same(block.text, printed):
                    problems.append(f"{line}: the page shows\n{block.text}but the command prints\n{printed}")
            elif block.kind == "python":
                python += block.text
        if python:
            (folder / "_page.py").write_text(python, encoding="utf-8")
            code, printed = shell("python _page.py", folder)
            if code:
                problems.append(f"{path}: its Python code ends with {code}: {printed.strip()[-800:]}")
    for block, text in reversed(changed):
        page = page[: block.start] + text + page[block.end :]
    if changed:
        path.write_text(page, encoding="utf-8")
    return problems


def shell(commands: str, folder: Path) -> tuple[int, str]:
    """Run commands in a folder with this Python's `scalelab`; exit code, and what they print."""
    call = f'scalelab() {{ "{sys.executable}" -m scalelab "$@"; }}; python() {{ "{sys.executable}" "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", call + commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def same(shown: str, printed: str) -> bool:
    """True if a page shows the printed text: the same words, and numbers that differ by a tenth at most."""
    parts, rest = re.split(r"^…\n", shown, flags=re.MULTILINE), printed.splitlines()
    for number, part in enumerate(parts):
        lines = part.splitlines()
        starts = range(len(rest) - len(lines) + 1) if number else range(min(1, len(rest) - len(lines) + 1))
        at = next((at for at in starts if all(map(alike, lines, rest[at:]))), None)
        if at is None:
            return False
        rest = rest[at + len(lines) :]
    return not rest or parts[-1] == ""


def alike(shown: str, printed: str) -> bool:
    """True if two lines have the same words, and numbers that agree."""
    if [re.sub(r"[\s-]+", " ", words) for words in NUMBER.split(shown)] != [
        re.sub(r"[\s-]+", " ", words) for words in NUMBER.split(printed)
    ]:
        return False
    pairs = zip(map(value, NUMBER.findall(shown)), map(value, NUMBER.findall(printed)), strict=True)
    return all(abs(a - b) <= max(ABSOLUTE, RELATIVE * max(abs(a), abs(b))) for a, b in pairs)


def value(text: str) -> float:
    """The number that a text stands for."""
    return float(text.replace(",", "").replace("−", "-").rstrip("."))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put what the commands print into the pages")
    args = parser.parse_args()
    problems = [problem for page in args.pages for problem in run_page(page, args.write)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
