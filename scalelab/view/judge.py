"""Fits, comparisons and parallel tasks as plain records: the only module of the page that calls `scalelab.curves`.

Everything that takes time goes through `Kept`, so that runs whose points did not change cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scalelab.curves import (
    Analysis,
    Curve,
    Options,
    analyse,
    compare,
    extend_or_stop,
    parallel,
    pool,
)
from scalelab.curves.ahead import table
from scalelab.curves.compare import against
from scalelab.curves.comparison import ComparedRun, Comparison, entry_summary
from scalelab.curves.comparison_table import COLUMNS, SHORT_COLUMNS
from scalelab.curves.efficiency import efficiency
from scalelab.errors import LabError
from scalelab.jsonl import plain
from scalelab.kept import Kept, key_of

MOST_KEYS, MOST_ANALYSES = 10_000, 300
"""Curves whose keys, and whose fits with all their draws, are held in memory."""


def as_recipe(curves: Sequence[Curve], name: str) -> list[Curve]:
    """The curves of a recipe from those of its runs: one for each task, its seeds pooled.

    Raises:
        LabError: the runs count compute in different units.
    """
    if len({item.run for item in curves}) > 1:
        return pool(curves, name)
    return [replace(item, run=name) for item in curves]


def has_pairs(what: str, curves: Sequence[Curve]) -> bool:
    """True if there is something to hold together: for `compare` two curves of one task, for `parallel` two."""
    sizes = Counter(item.task if what == "compare" else "" for item in curves)
    return max(sizes.values(), default=0) > 1


SHORT_KEYS = [column.key for column in SHORT_COLUMNS]
"""Fields that the page sorts its narrow table by, column by column."""


class Judge:
    """Fits and compares curves.

    Args:
        options: how to fit.
        kept: where results are kept.

    Attributes:
        elsewhere: who makes what is not kept, as `FittingProcess.ask`; None makes it here.
    """

    def __init__(self, options: Options, kept: Kept) -> None:
        self.options, self._kept = options, kept
        self.elsewhere: Callable[[str, Sequence[Curve]], Any] | None = None
        self._analyses: dict[str, Analysis] = {}
        self._keys: dict[int, tuple[Curve, str]] = {}

    def key(self, item: Curve) -> str:
        """The key of a curve's fit."""
        known = self._keys.get(id(item))
        if known is None or known[0] is not item:
            if len(self._keys) >= MOST_KEYS:
                self._keys.clear()
            known = self._keys[id(item)] = item, self._key(item)
        return known[1]

    def _key(self, item: Curve) -> str:
        stderr = b"" if item.stderr_N is None else item.stderr_N.tobytes()
        arrays = item.compute_N.tobytes(), item.pass_rate_N.tobytes(), stderr, item.seed_N.tobytes()
        facts = item.run, item.task, item.seeds, item.unit, item.epoch_end, item.fit_window, item.notes
        return key_of("fit", *arrays, facts, self.options)

    def known(self, item: Curve) -> dict[str, Any] | None:
        """The fit of a curve if it is kept already."""
        return self._kept.peek(self.key(item))

    def fit(self, item: Curve) -> dict[str, Any]:
        """The fit of a curve as a record; `{"refused": reason}` where its points carry none."""
        return self._kept.get(self.key(item), lambda: self._made("fit", [item]))

    def compare(self, curves: Sequence[Curve]) -> list[dict[str, Any]] | None:
        """The ranking of each task's curves, whose words hold together; None if no task has two curves with fits."""
        return self._together("compare", curves)

    def parallel(self, curves: Sequence[Curve]) -> dict[str, Any] | None:
        """The pairs of tasks of one recipe and whether they are parallel; None if fewer than two carry a fit."""
        return self._together("parallel", curves)

    def known_together(self, what: str, curves: Sequence[Curve]) -> tuple[bool, Any]:
        """True with the answer to `compare` or `parallel`, where it is kept or is None; else False."""
        if any(self.known(item) is None for item in curves):
            return False, None
        fitted = self._fitted(curves)
        if not has_pairs(what, fitted):
            return True, None
        found = self._kept.peek(self._key_together(what, fitted))
        return found is not None, found

    def make(self, what: str, curves: Sequence[Curve]) -> Any:
        """Make the record of a question, `fit`, `compare` or `parallel`, in this process.

        Raises:
            LabError: the curves cannot be held together.
        """
        if what == "fit":
            return self._fit(curves[0])
        return self._compare(curves) if what == "compare" else self._parallel(curves)

    def _made(self, what: str, curves: Sequence[Curve]) -> Any:
        return (self.elsewhere or self.make)(what, curves)

    def _together(self, what: str, curves: Sequence[Curve]) -> Any:
        fitted = self._fitted(curves)
        if not has_pairs(what, fitted):
            return None
        return self._kept.get(self._key_together(what, fitted), lambda: self._made(what, fitted))

    def _fitted(self, curves: Sequence[Curve]) -> list[Curve]:
        return [item for item in curves if "refused" not in self.fit(item)]

    def _key_together(self, what: str, curves: Sequence[Curve]) -> str:
        return key_of(what, *map(self.key, curves))

    def analysis(self, item: Curve) -> Analysis:
        """The analysis of a curve; the newest are held in memory.

        Raises:
            LabError: its points carry no fit.
        """
        key = self.key(item)
        if key not in self._analyses:
            if len(self._analyses) >= MOST_ANALYSES:
                del self._analyses[next(iter(self._analyses))]
            self._analyses[key] = analyse(item, self.options)
        return self._analyses[key]

    def _fit(self, item: Curve) -> dict[str, Any]:
        try:
            found = self.analysis(item)
            extension = vars(extend_or_stop(found)).copy()
        except LabError as error:
            return {"run": item.run, "task": item.task, "unit": item.unit, "refused": str(error)}
        summary = found.as_json()
        kept = ["run", "task", "window", "window_rule", "n_points", "intervals", "level", "warnings", "backtest"]
        kept += ["rates", "gain_seen", "A_stands", "endless"]
        record = {name: summary[name] for name in kept}
        record |= {"parameters": found.params, "unit": item.unit, "seeds": len(item.seeds)}
        record |= {"forgets": found.falls, "fall_text": found.fall_text() if found.falls else ""}
        return plain(record | {"extension": extension, "table": table(found)})

    def _compare(self, curves: Sequence[Curve]) -> list[dict[str, Any]]:
        comparisons = compare([self.analysis(item) for item in curves])
        runs = dict.fromkeys(item.run for item in curves)
        others = {run: {one.task: one for one in against(comparisons, run)} for run in runs}
        return [
            _comparison(one, {item.run: others[item.run][one.task] for item in one.entries})
            for one in comparisons
            if len(one.entries) > 1
        ]

    def _parallel(self, curves: Sequence[Curve]) -> dict[str, Any]:
        return plain({"name": curves[0].run, "pairs": [one.as_json() for one in parallel(map(self.analysis, curves))]})


def _comparison(one: Comparison, others: dict[str, Comparison]) -> dict[str, Any]:
    """A task's comparison as a record, with its short table against each of the runs."""
    facts = {"task": one.task, "at": one.at, "unit": one.reference.analysis.fit.curve.unit, "notes": list(one.notes)}
    facts["spread_measured"] = one.measured
    rows = [vars(row) | {"cells": row.cells(), "short_cells": row.short_cells()} for row in one.rows()]
    return plain(
        facts
        | {
            "crossings": [vars(item) for item in one.crossings.told()],
            "sentence": one.sentence(),
            "header": one.header(),
            "keys": [column.key for column in COLUMNS],
            "short_header": one.short_header(),
            "short_keys": SHORT_KEYS,
            "rows": rows,
            "entries": [_entry(item) for item in one.entries],
            "against": {run: _against(held) for run, held in others.items()},
        }
    )


def _against(held: Comparison) -> dict[str, Any]:
    """The short table of a comparison."""
    rows = [{"run": row.run, "short_cells": row.short_cells(), "verdict": row.verdict} for row in held.rows()]
    numbers = ("measured", "difference", "probability", "verdict_text")
    rows = [short | {name: getattr(row, name) for name in numbers} for short, row in zip(rows, held.rows())]
    return {"sentence": held.sentence(), "short_header": held.short_header(), "short_keys": SHORT_KEYS, "rows": rows}


def _entry(item: ComparedRun) -> dict[str, Any]:
    """One run of a ranking, with its line of the efficiency plot."""
    summary = entry_summary(item, ())
    kept = ("run", "rank", "tied_with", "common_A", "B_at_common_A", "value", "value_interval", "beats", "seeds")
    record = {name: summary[name] for name in kept}
    compute_N, F_N, line_N = efficiency(item.analysis.fit, item.by_A.common_A)
    record |= {"A": summary["A"], "A_interval": summary["intervals"].get("A")}
    record |= {"B_interval": summary["intervals"]["B_at_common_A"]}
    return record | {"efficiency": {"compute": compute_N.tolist(), "F": F_N.tolist(), "line": line_N.tolist()}}
