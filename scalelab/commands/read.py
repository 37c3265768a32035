"""Read logs as `fit`, `compare` and `forecast` read them, and show what was taken, left out, stitched and converted.

LOG is a run folder, a table (CSV, JSON, JSON lines, Parquet), a W&B export, TensorBoard events or their CSV, the text
that verl, prime-rl or TRL print, or a trainer_state.json; .gz and UTF-16 as well. Columns are found by their names;
--column names them otherwise. --save keeps all settings, and `fit --mapping` takes them again.

Examples:
  scalelab read verl.log
  scalelab read points.csv --column pass_rate=acc --rate-range 0 100 --save mine.json
  scalelab fit other.csv --mapping mine.json
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import add_json
from scalelab.commands.curve_options import add_reading_arguments, reading_from
from scalelab.commands.output import print_filled, print_json, print_table
from scalelab.terminal import shell_path

if TYPE_CHECKING:
    from scalelab.reading import Reading, ReadLog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("logs", nargs="+", metavar="LOG", help="logs of any trainer, or run folders")
    add_reading_arguments(parser)
    parser.add_argument("--save", type=Path, metavar="MAPPING", help="write the settings, for --mapping")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the logs and print what they hold."""
    from scalelab.reading import open_sources
    from scalelab.reading.settings import refuse_unknown_tasks

    reading = reading_from(args)
    sources = open_sources(args.logs, replace(reading, tasks=(), metrics=reading.tasks))
    refuse_unknown_tasks(reading.tasks, [item.task for source in sources for item in source.curves])
    if args.save:
        settled(reading, sources).save(args.save)
    if args.json:
        print_json({"sources": [_as_json(source, reading) for source in sources]})
        return 0
    for index, source in enumerate(sources):
        print("\n" * (index > 0), end="")
        _print_source(source, reading)
    if args.save:
        command = f"scalelab fit LOG --mapping {shell_path(args.save)}"
        print(f"\nwritten: {args.save}; {command} reads other logs in the same way")
    return 0


def settled(reading: Reading, sources: list[ReadLog]) -> Reading:
    """The settings with the columns that were found in every log under one name, so that later logs are read alike."""
    columns = dict(reading.columns)
    for ours in sources[0].columns:
        found = {source.columns.get(ours) for source in sources}
        names = found.pop() if len(found) == 1 else None
        if names and len(names) == 1:
            columns.setdefault(ours, names[0])
    return replace(reading, columns=columns)


def _kept(source: ReadLog, reading: Reading) -> list[Any]:
    return [item for item in source.curves if not reading.tasks or item.task in reading.tasks]


def _as_json(source: ReadLog, reading: Reading) -> dict[str, Any]:
    return {
        "source": str(source.path),
        "kind": source.kind,
        "rows": source.rows,
        "columns": {ours: list(theirs) for ours, theirs in source.columns.items()},
        "left": list(source.left),
        "curves": [
            {
                "run": item.run,
                "task": item.task,
                "unit": item.unit,
                "seeds": list(item.seeds),
                "compute": item.compute_N.tolist(),
                "pass_rate": item.pass_rate_N.tolist(),
                "stderr": None if item.stderr_N is None else item.stderr_N.tolist(),
                "notes": list(item.notes),
            }
            for item in _kept(source, reading)
        ],
    }


def _print_source(source: ReadLog, reading: Reading) -> None:
    print(f"{source.path}: {source.kind}, {source.rows:,} {'row' if source.rows == 1 else 'rows'}")
    taken = [
        f"{ours} = {', '.join(theirs[:6])}{f' and {len(theirs) - 6} more' if len(theirs) > 6 else ''}"
        for ours, theirs in source.columns.items()
        if ours != "step" or theirs != source.columns["compute"]
    ]
    print_filled(f"taken: {'; '.join(taken)}")
    if source.left:
        more = f", and {len(source.left) - 8} more" if len(source.left) > 8 else ""
        print_filled(f"not taken: {', '.join(source.left[:8])}{more}")
    print()
    curves = _kept(source, reading)
    rows = [
        [
            item.run,
            item.task or "–",
            str(len(item)),
            str(len(item.seeds)),
            f"{item.compute_N[0]:,.6g} – {item.compute_N[-1]:,.6g} {item.unit}",
            f"{item.pass_rate_N[0]:.4f} → {item.pass_rate_N[-1]:.4f}",
            "–" if item.stderr_N is None else f"{float(item.stderr_N.mean()):.4f}",
        ]
        for item in curves
    ]
    print_table(rows, ["run", "task", "evaluations", "seeds", "compute", "pass rate", "± each"])
    for note in dict.fromkeys(note for item in curves for note in item.notes):
        about = [item.name for item in curves if note in item.notes]
        print_filled(f"! {note if len(about) == len(curves) else f'{about[0]}: {note}'}")
