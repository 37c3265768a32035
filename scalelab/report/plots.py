"""Plots of fits, forecasts and comparisons: described once, drawn as inline SVG or, for files, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves.analysis import Analysis
from scalelab.curves.compare import Comparison, efficiency
from scalelab.curves.data import Curve, same_unit
from scalelab.curves.fitting.joint import Fit
from scalelab.curves.forecast import band
from scalelab.errors import LabError
from scalelab.report.style import STYLE
from scalelab.report.svg import MUTED, PALETTE, Band, Chart, Line, Mark, Points, Series, draw

Titled = tuple[str, Chart]

GRID = 240
"""Points along a drawn curve."""


def colors(names: Sequence[str]) -> dict[str, str]:
    """A colour for each distinct name, in order of appearance."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(dict.fromkeys(names))}


def fit_charts(
    curves: Sequence[Curve], analyses: Sequence[Analysis], until: float | None = None, width: int = 960
) -> list[Titled]:
    """Pass rate against compute: the tasks of one run in one chart, or the runs of each task in a chart per task.

    Points outside of the fit window are hollow. Beyond the window the dashed line is the median forecast.

    Args:
        curves: all points.
        analyses: their fits; a refused curve shows its points alone.
        until: compute to extrapolate to; None goes half as far again as the points do.
        width: of a chart, in pixels.
    """
    runs = list(dict.fromkeys(item.run for item in curves))
    if len(runs) == 1:
        palette = colors([item.task for item in curves])
        return [
            (
                "",
                _fit_chart(
                    [(item, item.task or item.run, palette[item.task]) for item in curves], analyses, until, width
                ),
            )
        ]
    palette = colors(runs)
    return [
        (
            task,
            _fit_chart(
                [(item, item.run, palette[item.run]) for item in curves if item.task == task], analyses, until, width
            ),
        )
        for task in dict.fromkeys(item.task for item in curves)
    ]


def _fit_chart(
    members: Sequence[tuple[Curve, str, str]], analyses: Sequence[Analysis], until: float | None, width: int
) -> Chart:
    fitted = {(item.fit.curve.run, item.fit.curve.task): item for item in analyses}
    end = until or 1.5 * float(max(item.compute_N.max() for item, _, _ in members)) or 1.0
    behind: list[Series] = []
    front: list[Series] = []
    for item, label, color in members:
        analysis = fitted.get((item.run, item.task))
        if analysis is not None:
            behind += _fitted_series(analysis, end, color)
        front += _point_series(item, analysis, label, color)
    unit = same_unit([item for item, _, _ in members])
    return Chart(
        [*behind, *front],
        x_label=f"compute ({unit})",
        y_label="held-out pass rate",
        x_range=(0.0, end),
        width=width,
        height=round(width * 0.46),
    )


def _fitted_series(analysis: Analysis, end: float, color: str) -> list[Series]:
    start = 0.0 if "R0" in analysis.fit.parameters else analysis.fit.window[0]
    last = analysis.fit.window[1]
    inside, outside = np.linspace(start, last, GRID), np.linspace(last, max(end, last), GRID // 2)
    series: list[Series] = []
    if analysis.draws is not None:
        whole = np.concatenate([inside, outside[1:]])
        low, median, high = band(analysis, whole)
        series.append(Band(whole.tolist(), low.tolist(), high.tolist(), color))
        beyond = median[GRID - 1 :]
    else:
        beyond = analysis.fit.value(outside)
    series.append(Line(inside.tolist(), analysis.fit.value(inside).tolist(), color))
    if end > last:
        series.append(Line(outside.tolist(), beyond.tolist(), color, dash=True, width=1.6))
    return series


def _point_series(item: Curve, analysis: Analysis | None, label: str, color: str) -> list[Series]:
    used = _used(item, analysis.fit) if analysis else np.zeros(len(item), bool)
    series: list[Series] = []
    for mask, hollow in ((~used, True), (used, False)):
        if mask.any():
            part = item.select(mask)
            error = None if part.stderr_N is None else part.stderr_N.tolist()
            name = label if not hollow or not used.any() else ""
            series.append(Points(part.compute_N.tolist(), part.pass_rate_N.tolist(), color, name, error, hollow))
    return series


def _used(item: Curve, fit: Fit) -> np.ndarray:
    """Which points of a curve its fit saw."""
    start_N = item.compute_N == 0
    inside_N = (item.compute_N >= fit.window[0]) & (item.compute_N <= fit.window[1])
    return np.where(start_N, (fit.curve.compute_N == 0).any(), inside_N)


def efficiency_charts(
    comparisons: Sequence[Comparison], palette: Mapping[str, str] | None = None, width: int = 960
) -> list[Titled]:
    """F(R) = C^B at the common A, both axes logarithmic: straight lines of slope B (ScaleRL A.5)."""
    charts = []
    for one in comparisons:
        chosen = palette or colors([entry.run for entry in one.entries])
        series: list[Series] = []
        for entry in one.entries:
            compute_N, F_N, line_N = efficiency(entry.analysis.fit, entry.common_A)
            color, label = chosen[entry.run], f"{entry.run}: B {entry.B_at_common_A:.2f} at A {entry.common_A:.3f}"
            series.append(Line(compute_N.tolist(), line_N.tolist(), color))
            series.append(Points(compute_N.tolist(), F_N.tolist(), color, label))
        unit = one.entries[0].analysis.fit.curve.unit
        chart = Chart(
            series, f"compute ({unit})", "F(R) = C^B", log_x=True, log_y=True, width=width, height=round(width * 0.46)
        )
        charts.append((one.task, chart))
    return charts


def plot_fits(curves: Sequence[Curve], analyses: Sequence[Analysis], path: Path, until: float | None = None) -> None:
    """Draw the fits to a `.png`, `.svg` or `.html` file."""
    save(fit_charts(curves, analyses, until), path)


def plot_efficiency(comparisons: Sequence[Comparison], path: Path, palette: Mapping[str, str] | None = None) -> None:
    """Draw the efficiency plot to a `.png`, `.svg` or `.html` file."""
    save(efficiency_charts(comparisons, palette), path)


def save(charts: Sequence[Titled], path: Path) -> None:
    """Write charts, one below the other.

    Raises:
        LabError: the file's ending says nothing that can be drawn.
    """
    if path.suffix == ".html":
        headed = [(f"<h2>{escape(title)}</h2>" if title else "", chart) for title, chart in charts]
        figures = "".join(f"<section>{heading}{draw(chart)}</section>" for heading, chart in headed)
        head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(path.stem)}</title>'
        head += f"<style>{STYLE}</style></head>"
        path.write_text(f"{head}<body><main>{figures}</main></body></html>\n", encoding="utf-8")
    elif path.suffix in (".png", ".svg"):
        _save_with_matplotlib(charts, path)
    else:
        raise LabError(f"{path}: cannot draw {path.suffix or 'a file without an ending'}; use .png, .svg or .html")


def _save_with_matplotlib(charts: Sequence[Titled], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e6e9ee",
        "legend.frameon": False,
        "svg.hashsalt": "scalelab",
    }
    with matplotlib.rc_context(style):
        height = sum(chart.height for _, chart in charts) / 100
        figure, axes = pyplot.subplots(len(charts), figsize=(charts[0][1].width / 100, height), squeeze=False)
        for (title, chart), axis in zip(charts, axes[:, 0]):
            for item in chart.series:
                _plot(axis, item)
            axis.set(xlabel=chart.x_label, ylabel=chart.y_label, title=title)
            axis.set_xscale("log" if chart.log_x else "linear")
            axis.set_yscale("log" if chart.log_y else "linear")
            if chart.x_range:
                axis.set_xlim(*chart.x_range)
            if any(getattr(item, "label", "") for item in chart.series):
                axis.legend()
        figure.tight_layout()
        figure.savefig(path, dpi=160)
        pyplot.close(figure)


def _plot(axis: Any, item: Series) -> None:
    """One series on a matplotlib axis."""
    if isinstance(item, Line):
        axis.plot(
            item.x, item.y, color=item.color, lw=item.width, ls="--" if item.dash else "-", label=item.label or None
        )
    elif isinstance(item, Band):
        axis.fill_between(item.x, item.low, item.high, color=item.color, alpha=item.opacity, lw=0)
    elif isinstance(item, Mark):
        axis.axvline(item.x, color=item.color, ls=":", label=item.label or None)
    else:
        axis.errorbar(
            item.x, item.y, yerr=item.error, fmt="o", ms=4.5, color=item.color, elinewidth=1,
            mfc="white" if item.hollow else item.color, label=item.label or None,
        )  # fmt: skip
