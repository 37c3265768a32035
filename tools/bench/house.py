"""Table of the product's structure at two commits (docs/house.md).

    python tools/bench/house.py [COMMIT...] [--way FILES...] [--noticed SHARE...] [--write docs/house.md]

Without commits: before the rooms were opened, and HEAD. Two rows are given, at each commit: `--way` counts the files
that handle a prompt, its completion, batch and gradient with Ray, read by a person, without types, settings and
records; `--noticed` is what mutation.py printed.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Set
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sections import replace_section  # noqa: E402 - behind the path

from tests.helpers.rooms import between_rooms, circle, functions, imports, modules, words_of_docs  # noqa: E402

BEFORE = "44e3751"
BEGIN, END = "<!-- made by tools/bench/house.py -->", "<!-- end -->"
LOOSE = ("scalelab/run/ports.py", "scalelab/run/work.py", "scalelab/run/books.py")
"""Files whose `Any`s are counted: what the loop hands on."""

Graph = Mapping[str, Set[str]]


def circles(graph: Graph) -> list[set[str]]:
    """Groups of nodes that reach each other: the strongly connected components of two nodes and more."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {frozenset({node, *(one for one in reached[node] if node in reached.get(one, ()))}) for node in graph}
    return [set(group) for group in groups if len(group) > 1]


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = set(graph.get(waiting.pop(), ())) - found
        found |= fresh
        waiting += fresh
    return found


def arrows_back(graph: Graph) -> int:
    """The fewest arrows without which the graph has an order."""
    return sum(_fewest({node: graph[node] & group for node in group}) for group in circles(graph))


def _fewest(graph: dict[str, Set[str]]) -> int:
    arrows = [(node, other) for node, others in graph.items() for other in others]
    for count in range(1, len(arrows)):
        for gone in combinations(arrows, count):
            left = {node: {other for other in others if (node, other) not in gone} for node, others in graph.items()}
            if not circle(left):
                return count
    return len(arrows)


def figures(root: Path) -> dict[str, str]:
    """The rows of the table for a tree."""
    files = modules(root)
    imported = imports(files)
    lines = {name: file.read_text(encoding="utf-8").count("\n") for name, file in files.items()}
    rooms: dict[Path, int] = {}
    for name, file in files.items():
        rooms[file.parent] = rooms.get(file.parent, 0) + lines[name]
    anys = sum(len(re.findall(r"\bAny\b", re.sub(r"import.*", "", (root / file).read_text()))) for file in LOOSE)
    return {
        "files": f"{len(files):,}",
        "lines": f"{sum(lines.values()):,}",
        "rooms (folders with modules)": f"{len(rooms)}",
        "largest room, of all lines": f"{max(rooms.values()) / sum(lines.values()):.1%}",
        "longest file, lines": f"{max(lines.values())}",
        "longest function, lines": f"{max(functions(files).values())}",
        "circles of imports": f"{len(circles(imported))}",
        "arrows between rooms that run back up": f"{arrows_back(between_rooms(imported))}",
        "`Any` in ports, work and books": f"{anys}",
        "words of the docs": f"{words_of_docs(root):,}",
    }


def at(commit: str) -> dict[str, str]:
    """The rows for a commit of this repository."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
        return figures(Path(folder))


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=[BEFORE, "HEAD"], metavar="COMMIT")
    parser.add_argument("--way", nargs="*", default=[], metavar="FILES", help="files from prompt to gradient")
    parser.add_argument("--noticed", nargs="*", default=[], metavar="SHARE", help="mutants noticed at each commit")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args()
    columns = [at(commit) for commit in args.commits]
    for name, given in (("files from prompt to gradient, read", args.way), ("mutants noticed", args.noticed)):
        for column, value in zip(columns, given):
            column[name] = value
    ask = ["git", "show", "-s", "--format=%h, %cs", *args.commits]
    named = subprocess.check_output(ask, cwd=ROOT, text=True).split("\n")[: len(columns)]
    rows = [["", *named], ["---"] * (1 + len(named))]
    rows += [[name, *(column.get(name, "–") for column in columns)] for name in columns[0]]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    print(text)
    if args.write:
        replace_section(args.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
