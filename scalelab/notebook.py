"""Runs, fits and comparisons as objects for a notebook: short to print, as tables, as pictures.

    from scalelab import load_runs

    runs = load_runs("runs/quickstart", "points.csv")
    fits = runs.fit()
    fits.to_frame()
    fits.plot()

They call what `scalelab fit`, `forecast` and `compare` call, and give the same numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.curves import Analysis, Curve, Options, analyse_all, compare, extend_or_stop, forecast
from scalelab.curves.data import same_unit
from scalelab.curves.reading import Reading, load_reading, read_with
from scalelab.errors import LabError
from scalelab.numbers import with_error, with_interval

if TYPE_CHECKING:
    import pandas

SHOWN = ("R0", "A", "B", "C_mid", "D")
"""Parameters in the order in which they are shown; D is the power law's."""


def load(
    sources: Sequence[str | Path],
    columns: Mapping[str, str] | None = None,
    compute_scale: float | None = None,
    unit: str | None = None,
    mapping: str | Path | None = None,
) -> Runs:
    """Read runs; see `scalelab.load_runs`."""
    if not sources:
        raise LabError("name at least one run folder or file")
    paths = [Path(source).expanduser() for source in sources]
    reading = load_reading(Path(mapping).expanduser()) if mapping else Reading()
    reading = replace(
        reading,
        columns={**reading.columns, **(columns or {})},
        compute_scale=reading.compute_scale if compute_scale is None else compute_scale,
        unit=reading.unit if unit is None else unit,
    )
    return Runs(tuple(read_with(paths, reading)))


@dataclass(frozen=True, repr=False)
class Runs:
    """The evaluations of some runs, one curve per run and task."""

    curves: tuple[Curve, ...]

    @property
    def names(self) -> list[str]:
        """Names of the runs."""
        return list(dict.fromkeys(curve.run for curve in self.curves))

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(dict.fromkeys(curve.task for curve in self.curves))

    def select(self, run: str | None = None, task: str | None = None) -> Runs:
        """Keep one run, one task, or one task of one run.

        Raises:
            LabError: there is none of that name.
        """
        kept = tuple(c for c in self.curves if run in (None, c.run) and task in (None, c.task))
        if not kept:
            raise LabError(
                f"no curve of run {run!r} and task {task!r}; there are runs {', '.join(self.names)} and tasks "
                f"{', '.join(map(str, self.tasks))}"
            )
        return Runs(kept)

    def fit(self, **options: Any) -> Fits:
        """Fit every curve.

        Args:
            **options: fields of `scalelab.curves.Options`, such as `since=0.01`, `method="power"`, `level=0.9`.

        Returns:
            The fits; curves that carry none are in its `refused`, with the reason.
        """
        analyses, refused = analyse_all(self.curves, Options(**options))
        return Fits(self, tuple(analyses), tuple(refused))

    def to_frame(self) -> pandas.DataFrame:
        """One row per evaluation: run, task, seed, compute, pass_rate, stderr."""
        return _frame(
            {
                "run": curve.run,
                "task": curve.task,
                "seed": curve.seeds[curve.seed_N[point]] if len(curve.seed_N) else "",
                "compute": float(curve.compute_N[point]),
                "pass_rate": float(curve.pass_rate_N[point]),
                "stderr": None if curve.stderr_N is None else float(curve.stderr_N[point]),
            }
            for curve in self.curves
            for point in range(len(curve))
        )

    def plot(self) -> Picture:
        """Draw the points."""
        from scalelab.report.plots import plot_fits

        return Picture(lambda path: plot_fits(self.curves, [], path))

    def __len__(self) -> int:
        return len(self.curves)

    def __repr__(self) -> str:
        points, spent = sum(map(len, self.curves)), max(float(c.compute_N.max()) for c in self.curves)
        runs, tasks = _count(self.names, "run"), _count(self.tasks, "task")
        return f"<Runs: {runs}, {tasks}, {points} evaluations, up to {spent:.4g} {same_unit(self.curves)}>"

    def _repr_html_(self) -> str:
        rows = [
            [curve.run, curve.task, len(curve), f"{curve.pass_rate_N[0]:.3f}", f"{curve.pass_rate_N[-1]:.3f}"]
            for curve in self.curves
        ]
        return _html(["run", "task", "evaluations", "first", "last"], rows)


@dataclass(frozen=True, repr=False)
class Fits:
    """Fitted curves with their uncertainty.

    Attributes:
        runs: what was fitted.
        analyses: a fit with all that follows from it, per curve.
        refused: curves that carry no fit, with the reason.
    """

    runs: Runs
    analyses: tuple[Analysis, ...]
    refused: tuple[dict[str, str], ...]

    def to_frame(self) -> pandas.DataFrame:
        """One row per fit: parameters, the ends of their intervals as `A_low` and `A_high`, points and warnings."""
        return _frame(map(_row, self.analyses))

    def forecast(self, *at: float) -> pandas.DataFrame:
        """Forecast every curve at some compute, with the interval that an evaluation there would fall into.

        Args:
            *at: compute, in the unit of the runs.
        """
        return _frame(
            {"run": a.fit.curve.run, "task": a.fit.curve.task, "compute": f.at, "pass_rate": f.value}
            | {"low": f.interval[0], "high": f.interval[1], "level": a.level}
            for a in self.analyses
            for f in forecast(a, at)
        )

    def outlook(self) -> pandas.DataFrame:
        """Gain of doubling every curve's compute, and whether it is worthwhile."""
        found = [(one, extend_or_stop(one)) for one in self.analyses]
        return _frame(
            {"run": one.fit.curve.run, "task": one.fit.curve.task, "gain_if_doubled": gain.gain_if_doubled}
            | {"low": gain.interval[0], "high": gain.interval[1], "reading": gain.reading}
            for one, gain in found
        )

    def compare(self, **options: Any) -> pandas.DataFrame:
        """Compare the runs of each task: one row per run, best first, as `scalelab compare` prints them.

        Args:
            **options: as `scalelab.curves.compare` takes them, such as `margin=0.01`.
        """
        return _frame(vars(row) for one in compare(self.analyses, **options) for row in one.rows())

    def plot(self) -> Picture:
        """Draw points, curves and the bands that they lie in."""
        from scalelab.report.plots import plot_fits

        return Picture(lambda path: plot_fits(self.runs.curves, self.analyses, path))

    def __len__(self) -> int:
        return len(self.analyses)

    def __repr__(self) -> str:
        lines = [
            f"  {one.fit.curve.name}: " + ", ".join(f"{name} {text}" for name, text in _texts(one).items())
            for one in self.analyses
        ]
        lines += [f"  refused: {one['reason']}" for one in self.refused]
        return "\n".join([f"<Fits: {len(self.analyses)} of {len(self.runs)} curves>", *lines])

    def _repr_html_(self) -> str:
        names = [name for name in SHOWN if any(name in _texts(one) for one in self.analyses)]
        rows = [
            [one.fit.curve.run, one.fit.curve.task, *(_texts(one).get(name, "") for name in names)]
            for one in self.analyses
        ]
        refused = "".join(f"<p>refused: {escape(one['reason'])}</p>" for one in self.refused)
        return _html(["run", "task", *names], rows) + refused


class Picture:
    """A drawing that a notebook shows, and `save` writes."""

    def __init__(self, draw: Callable[[Path], None]) -> None:
        self._draw = draw

    def save(self, path: str | Path) -> Path:
        """Write it to a `.png`, `.svg` or `.html` file.

        Returns:
            The file.
        """
        self._draw(Path(path))
        return Path(path)

    def _repr_svg_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return self.save(Path(folder, "picture.svg")).read_text(encoding="utf-8")


def _row(analysis: Analysis) -> dict[str, Any]:
    curve, fit = analysis.fit.curve, analysis.fit
    row: dict[str, Any] = {"run": curve.run, "task": curve.task}
    for name, value in analysis.params.items():
        low, high = analysis.intervals.get(name, (None, None))
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row | {"points": len(fit.curve), "warnings": "; ".join(analysis.warnings)}


def _texts(analysis: Analysis) -> dict[str, str]:
    """Parameters with their intervals, as text."""
    fit = analysis.fit
    return {
        name: with_interval(value, analysis.intervals[name])
        if name in analysis.intervals
        else with_error(value, fit.stderr[name])
        for name, value in analysis.params.items()
    }


def _count(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'s' * (len(names) != 1)}"


def _html(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _frame(rows: Iterator[dict[str, Any]] | map[dict[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ModuleNotFoundError:
        raise LabError("tables as data frames need pandas: pip install 'scalelab[frame]'") from None
    return pandas.DataFrame(list(rows))
