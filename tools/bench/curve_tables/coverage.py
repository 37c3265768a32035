"""Coverage of intervals over many kinds of runs, resumable: every simulated run is one line of a JSONL file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from curve_tables.common import markdown
from curve_tables.families import FAMILIES, simulate
from scalelab.curves import FitError, analyse, forecast

TARGETS = ("A", "value at 2×", "value at 4×", "evaluation at 2×")


def run_family(name: str, runs: int, folder: Path) -> None:
    """Simulate and fit until the family's file holds this many runs; what is there already is kept."""
    path = folder / f"{_stem(name)}.jsonl"
    done = sum(1 for _ in path.open()) if path.exists() else 0
    with path.open("a") as file:
        for index in range(done, runs):
            file.write(json.dumps(score(name, index)) + "\n")
            file.flush()


def score(name: str, index: int) -> dict[str, Any]:
    """Check if the intervals of one simulated run hold the truth, and their widths; with and without shapes."""
    one = simulate(FAMILIES[name], np.random.default_rng([index, zlib.crc32(name.encode())]))
    try:
        found = analyse(one.item)
    except FitError as error:
        return {"family": name, "index": index, "refused": str(error)}
    value = one.truth(np.array([2.0, 4.0]))
    truth = dict(zip(TARGETS, (one.A, float(value[0]), float(value[1]))))
    record: dict[str, Any] = {
        "family": name,
        "index": index,
        "sigmoid": found.draws().probability[0],
        "backtest": found.backtest.inside if found.backtest else None,
        "points_inside": found.backtest.covered if found.backtest else None,
        "error_of_A": None if one.A is None else found.fit.parameters["A"] - one.A,
    }
    draws = found.draws().sigmoid
    own = {
        "A": draws.theta_MP[:, 1],
        "value at 2×": draws.value([2.0])[:, 0],
        "value at 4×": draws.value([4.0])[:, 0],
        "evaluation at 2×": draws.evaluation([2.0])[:, 0],
    }
    near, far = forecast(found, [2.0, 4.0])
    wide = dict(zip(TARGETS, (found.intervals["A"], near.curve_interval, far.curve_interval, near.interval)))
    for target, true in truth.items():
        if true is None:
            continue
        low, high = np.quantile(own[target], [0.1, 0.9])
        record[target] = [bool(wide[target][0] <= true <= wide[target][1]), wide[target][1] - wide[target][0]]
        record[f"{target}, sigmoid"] = [bool(low <= true <= high), float(high - low)]
        record[f"{target}, below"] = bool(true < wide[target][0])
    target = TARGETS[3]
    low, high = np.quantile(own[target], [0.1, 0.9])
    record[target] = [one.chance(*wide[target]), wide[target][1] - wide[target][0]]
    record[f"{target}, sigmoid"] = [one.chance(low, high), float(high - low)]
    return record


def coverage_section(folder: Path) -> str:
    """The table, of all runs that the folder holds."""
    paths = [path for path in sorted(folder.glob("*.jsonl")) if path.stem in map(_stem, FAMILIES)]
    return _table([json.loads(line) for path in paths for line in path.read_text().splitlines()])


def _table(records: list[dict[str, Any]]) -> str:
    """Shares of intervals that hold, with their median width, and that width at 2× in those of the sigmoid alone."""
    rows = []
    for name in FAMILIES:
        mine = [record for record in records if record["family"] == name]
        fitted = [record for record in mine if "refused" not in record]
        if not fitted:
            continue
        cells = [_cell(record[target] for record in fitted if target in record) for target in TARGETS]
        wide, own = (np.median([one[f"value at 2×{kind}"][1] for one in fitted]) for kind in ("", ", sigmoid"))
        tested = [record["backtest"] for record in fitted if record["backtest"] is not None]
        rows.append([name, len(fitted), *cells, f"{wide / own:.2f}", f"{np.mean(tested):.0%}" if tested else "–"])
    return markdown(["family", "runs", *TARGETS, "width, sigmoid's = 1", "back-test holds"], rows)


def _cell(pairs: Iterable[tuple[bool, float]]) -> str:
    """Share of intervals that hold, and their median width."""
    found = list(pairs)
    if not found:
        return "–"
    return f"{np.mean([held for held, _ in found]):.0%} ({np.median([width for _, width in found]):.3f})"


def _stem(family: str) -> str:
    """Name of a family's file."""
    return family.replace(" ", "_").replace(",", "")


def families_matching(words: list[str]) -> list[str]:
    """Families whose name holds one of the words; all without any."""
    return [name for name in FAMILIES if not words or any(word in name for word in words)]
