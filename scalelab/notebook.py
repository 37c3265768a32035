"""Runs, fits and comparisons as objects for a notebook: short to print, as tables, as pictures.

    from scalelab import load_runs

    runs = load_runs("runs/quickstart", "points.csv")
    fits = runs.fit()
    fits.to_frame()
    fits.plot()

They call what `scalelab fit`, `forecast`, `compare` and `decide` call, and give the same numbers.
"""

from __future__ import annotations

import glob
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.curves import (
    Analysis,
    Curve,
    Options,
    analyse_all,
    compare,
    decide,
    extend_or_stop,
    forecast,
    pool_seeds,
)  # fmt: skip
from scalelab.curves.decide import Decision
from scalelab.errors import LabError, nearest
from scalelab.numbers import compact, counted, with_interval
from scalelab.reading import Reading, load_reading, read_with
from scalelab.reading.curve import same_unit
from scalelab.reading.sources import open_table
from scalelab.reading.table import Table

if TYPE_CHECKING:
    import pandas

TOLD = ("task", "run", "measured", "difference", "probability", "verdict_text")
"""Columns of a comparison that come first."""

SHOWN = ("R0", "A", "B", "C_mid", "D")
"""Parameters in the order in which they are shown; D is the power law's."""


RunsGiven = Any
"""A run folder or a file by its path, a pattern of these such as `"runs/*/seed_*"`, or a pandas DataFrame."""


def load(
    sources: Sequence[RunsGiven],
    columns: Mapping[str, str] | None = None,
    compute_scale: float | None = None,
    unit: str | None = None,
    mapping: str | Path | None = None,
) -> Runs:
    """Read runs; see `scalelab.load_runs`."""
    if not sources:
        raise LabError("name at least one run folder or file")
    reading = load_reading(Path(mapping).expanduser()) if mapping else Reading()
    reading = replace(
        reading,
        columns={**reading.columns, **(columns or {})},
        compute_scale=reading.compute_scale if compute_scale is None else compute_scale,
        unit=reading.unit if unit is None else unit,
    )
    curves: list[Curve] = []
    for place, source in enumerate(sources):
        curves += (
            read_with(_paths(source), reading) if isinstance(source, str | Path) else _of_frame(source, reading, place)
        )
    return Runs(tuple(curves))


def decided(
    sources: Sequence[RunsGiven], budget: float, worthwhile: float | None, options: Mapping[str, Any]
) -> Advice:
    """Decide; see `scalelab.decide`."""
    given = [source for source in sources if isinstance(source, Runs)]
    rest = [source for source in sources if not isinstance(source, Runs)]
    curves = [curve for runs in given for curve in runs.curves] + (list(load(rest).curves) if rest or not given else [])
    _number(budget, "a budget", "decide(…, budget=100)")
    pooled, _ = pool_seeds(curves)
    analyses, refused = analyse_all(pooled, _options(Options, options, "decide"))
    if not analyses:
        raise LabError(f"none of the runs carries a fit ({refused[0]['reason']})")
    return Advice(decide(analyses, budget) if worthwhile is None else decide(analyses, budget, worthwhile))


def _paths(source: str | Path) -> list[Path]:
    """The paths that a source names; a pattern stands for all that it matches."""
    path = Path(source).expanduser()
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    if not found:
        raise LabError(f"{source}: nothing matches this pattern")
    return found


def _of_frame(frame: Any, reading: Reading, place: int) -> list[Curve]:
    """The curves of a DataFrame, by the columns that a file would have."""
    try:
        cells = {str(name): frame[name].tolist() for name in frame.columns}
    except (AttributeError, TypeError, KeyError):
        kind = type(frame).__name__
        raise LabError(f"runs are read from paths and pandas DataFrames; a {kind} is neither") from None
    if not cells or not len(frame):
        raise LabError("the DataFrame is empty")
    name = f"table {place + 1}" if place else "table"
    held = Table(Path(name), "table", cells, range(1, len(frame) + 1), name)
    unit = getattr(frame, "attrs", {}).get("unit")
    reading = replace(reading, unit=unit) if reading.unit is None and isinstance(unit, str) else reading
    return list(open_table(held, Path(name), reading).curves)


def _options(kind: Callable[..., Any], given: Mapping[str, Any], what: str) -> Any:
    """The options as an object, or for a function as they are.

    Raises:
        LabError: one is unknown.
    """
    known = (
        [field.name for field in fields(kind)]
        if isinstance(kind, type)
        else [name for name, one in inspect.signature(kind).parameters.items() if one.kind is one.KEYWORD_ONLY]
    )
    for name in given:
        if name not in known:
            raise LabError(f"{what} has no option {name!r}; {nearest(name, known)}")
    return kind(**given) if isinstance(kind, type) else dict(given)


def _number(value: Any, what: str, example: str) -> None:
    if isinstance(value, bool) or (not isinstance(value, int | float) and not hasattr(value, "__float__")):
        raise LabError(f"{value!r} is not {what}: give a number, as in {example}")


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
        analyses, refused = analyse_all(self.curves, _options(Options, options, "fit"))
        return Fits(self, tuple(analyses), tuple(refused))

    def to_frame(self) -> pandas.DataFrame:
        """One row per evaluation: run, task, seed, compute, pass_rate, stderr; `attrs["unit"]` is compute's unit."""
        frame = _frame(
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
        frame.attrs["unit"] = same_unit(self.curves)
        return frame

    def plot(self) -> Picture:
        """Draw the points."""
        from scalelab.report.plots import plot_fits

        return Picture(lambda path: plot_fits(self.curves, [], path))

    def decide(self, budget: float, worthwhile: float | None = None, **options: Any) -> Advice:
        """Decide how to spend further compute; see `scalelab.decide`."""
        return decided([self], budget, worthwhile, options)

    def __len__(self) -> int:
        return len(self.curves)

    def __iter__(self) -> Iterator[Runs]:
        """Each curve, one run and task, by itself."""
        return (Runs((curve,)) for curve in self.curves)

    def __getitem__(self, which: int | slice | str | tuple[str, str]) -> Runs:
        """A curve by its place, several by a slice, a run by its name, or one task of it: `runs["seed0", "math"]`.

        Raises:
            LabError: there is no such run or task.
        """
        if isinstance(which, slice):
            return Runs(self.curves[which])
        if isinstance(which, str):
            return self.select(which)
        if isinstance(which, tuple) and len(which) == 2:
            return self.select(*which)
        if isinstance(which, int):
            return Runs((self.curves[which],))
        raise LabError(f"{which!r} is no run: give a number, a name, or a name and a task")

    def __repr__(self) -> str:
        points, spent = sum(map(len, self.curves)), max(float(c.compute_N.max()) for c in self.curves)
        runs, tasks = counted(len(self.names), "run"), counted(len(self.tasks), "task")
        return f"<Runs: {runs}, {tasks}, {points} evaluations, up to {compact(spent)} {same_unit(self.curves)}>"

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

        Raises:
            LabError: one of them is not a number.
        """
        for one in at:
            _number(one, "compute", "forecast(16_000)")
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
        options = _options(compare, options, "compare")
        return _frame(
            {name: getattr(row, name) for name in TOLD} | vars(row)
            for one in compare(self.analyses, **options)
            for row in one.rows()
        )

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


class Advice:
    """Advice on a budget: prints as sentences.

    Attributes:
        decision: the numbers behind them.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def to_frame(self) -> pandas.DataFrame:
        """The ways to spend the budget, the most promising first."""
        return _frame(
            {"step": one.step, "run": one.run, "gain": one.gain, "seeds": one.seeds}
            | {"low": one.interval[0], "high": one.interval[1]}
            for one in self.decision.choices
        )

    def __repr__(self) -> str:
        return "\n".join(self.decision.text())


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
    return {name: with_interval(value, analysis.intervals.get(name)) for name, value in analysis.params.items()}


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
