"""Figures in the quality of a paper, by matplotlib: fits with bands and forecasts, and the efficiency plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.curves import Analysis, Curve, Fit
from scalelab.curves.comparison import Comparison
from scalelab.curves.efficiency import efficiency
from scalelab.curves.forecast import band
from scalelab.errors import LabError
from scalelab.reading.curve import same_unit
from scalelab.view.palette import MARKERS, codes

ENDINGS = (".png", ".svg", ".pdf")
GRID = 240
"""Points along a drawn curve."""

WIDTH, HEIGHT = 7.0, 3.4
"""Inches of one chart: two columns of a paper."""

NARROWEST, WIDEST, LEAST_HEIGHT = 2.0, 20.0, 2.2
"""Inches that a figure may be wide, and that a chart is high at least."""

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#6b7684",
    "grid.color": "#e6e9ee",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # text stays text in the PDF
    "svg.fonttype": "none",
    "svg.hashsalt": "scalelab",
}

Codes = Mapping[str, Mapping[str, Any]]


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be drawn, before any other work.

    Raises:
        LabError: its ending is none that can be drawn.
    """
    if path.suffix not in ENDINGS:
        what = path.suffix or "a file without an ending"
        raise LabError(f"{path}: cannot draw {what}; use {', '.join(ENDINGS)}; a page: `scalelab report -o x.html`")


def check_width(width: float) -> None:
    """Refuse a width that no page has.

    Raises:
        LabError: it is out of range.
    """
    if not NARROWEST <= width <= WIDEST:
        raise LabError(f"a figure of {width:g} inches cannot be drawn: give {NARROWEST:g} to {WIDEST:g}")


def plot_fits(
    curves: Sequence[Curve],
    analyses: Sequence[Analysis],
    path: Path,
    until: float | None = None,
    width: float = WIDTH,
) -> None:
    """Draw pass rate against compute: the tasks of one run in one chart, or the runs of each task in a chart per task.

    Points outside of the fit window are hollow. Beyond the window the dashed line is the median forecast.

    Args:
        curves: all points.
        analyses: their fits; a refused curve shows its points alone.
        path: a `.png`, `.svg` or `.pdf` file.
        until: compute to extrapolate to; None goes half as far again as the points do.
        width: of the figure in inches, such as 3.3 for one column of a paper.
    """
    check_figure(path)
    check_width(width)
    single = len({item.run for item in curves}) == 1
    names = list(dict.fromkeys(item.task if single else item.run for item in curves))
    chosen = dict(zip(names, codes(len(names))))
    tasks = [None] if single else list(dict.fromkeys(item.task for item in curves))

    def draw(axes: Sequence[Any]) -> None:
        for axis, task in zip(axes, tasks):
            members = [item for item in curves if task is None or item.task == task]
            _draw_fits(axis, members, analyses, chosen, until)
            axis.set_title(task or "", fontsize=10)

    _save(path, len(tasks), draw, width)


def plot_efficiency(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw F(R) = C^B at the common A, both axes logarithmic: straight lines of slope B (ScaleRL A.5).

    Args:
        comparisons: a chart for each.
        path: a `.png`, `.svg` or `.pdf` file.
    """
    check_figure(path)
    names = list(dict.fromkeys(entry.run for one in comparisons for entry in one.entries))
    chosen = dict(zip(names, codes(len(names))))

    def draw(axes: Sequence[Any]) -> None:
        for axis, one in zip(axes, comparisons):
            for entry in one.entries:
                code = chosen[entry.run]
                compute_N, F_N, line_N = efficiency(entry.analysis.fit, entry.by_A.common_A)
                label = f"{entry.run}: B {entry.by_A.B:.2f} at A {entry.by_A.common_A:.3f}"
                axis.plot(compute_N, line_N, color=code["color"], ls=code["dash"], lw=1.2)
                axis.plot(compute_N, F_N, MARKERS[code["symbol"]], color=code["color"], label=label)
            unit = one.entries[0].analysis.fit.curve.counted_in
            axis.set(xscale="log", yscale="log", xlabel=f"compute ({unit})", ylabel="F(R) = C^B", title=one.task)
            _legend(axis, len(one.entries))

    _save(path, len(comparisons), draw)


def _draw_fits(
    axis: Any, members: Sequence[Curve], analyses: Sequence[Analysis], chosen: Codes, until: float | None
) -> None:
    """Points, fits, bands and forecasts of some curves on one axis."""
    fitted = {(item.fit.curve.run, item.fit.curve.task): item for item in analyses}
    end = until or 1.5 * float(max(item.compute_N.max() for item in members)) or 1.0
    for item in members:
        name = item.run if item.run in chosen else item.task
        code = chosen[name]
        analysis = fitted.get((item.run, item.task))
        if analysis is not None:
            _draw_fit(axis, analysis, end, code, shaded=len(members) <= 4)
        _draw_points(axis, item, analysis, code, name or item.run)
    same_unit(members)
    axis.set(xlim=(0, end), xlabel=f"compute ({members[0].counted_in})", ylabel=f"held-out {_measure(members)}")
    _legend(axis, len(members))


def _measure(members: Sequence[Curve]) -> str:
    """Name of what curves in one chart have in common on the y-axis."""
    names = {item.measure for item in members}
    return names.pop() if len(names) == 1 else "score"


def _draw_fit(axis: Any, analysis: Analysis, end: float, code: Mapping[str, Any], shaded: bool) -> None:
    start = 0.0 if "R0" in analysis.fit.parameters else analysis.fit.window[0]
    last = analysis.fit.window[1]
    whole = np.concatenate([np.linspace(start, last, GRID), np.linspace(last, max(end, last), GRID // 2)[1:]])
    middle = analysis.fit.value(whole)
    if analysis.curves is not None:
        low, middle, high = band(analysis, whole)
        if shaded:
            axis.fill_between(whole, low, high, color=code["color"], alpha=0.15, lw=0)
    inside, beyond = whole <= last, whole >= last
    axis.plot(whole[inside], middle[inside], color=code["color"], lw=1.6, ls=code["dash"])
    if end > last:
        axis.plot(whole[beyond], middle[beyond], color=code["color"], lw=1.1, ls=(0, (3, 2)))


def _draw_points(axis: Any, item: Curve, analysis: Analysis | None, code: Mapping[str, Any], label: str) -> None:
    used = _used(item, analysis.fit) if analysis else np.zeros(len(item), bool)
    for mask, hollow in ((~used, True), (used, False)):
        if mask.any():
            part = item.select(mask)
            axis.errorbar(
                part.compute_N, part.pass_rate_N, yerr=part.stderr_N, fmt=MARKERS[code["symbol"]], color=code["color"],
                elinewidth=0.7, mfc="white" if hollow else code["color"],
                label=label if not hollow or not used.any() else None,
            )  # fmt: skip


def _used(item: Curve, fit: Fit) -> np.ndarray:
    """bool[N]: True for the points of a curve that its fit used."""
    start_N = item.compute_N == 0
    inside_N = (item.compute_N >= fit.window[0]) & (item.compute_N <= fit.window[1])
    return np.where(start_N, (fit.curve.compute_N == 0).any(), inside_N)


def _legend(axis: Any, count: int) -> None:
    if count > 8:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axis.legend()


def _save(path: Path, count: int, draw: Any, width: float = WIDTH) -> None:
    """Draw some charts, one below the other, and write them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        height = max(HEIGHT * width / WIDTH, LEAST_HEIGHT)
        figure, axes = pyplot.subplots(count, figsize=(width, height * count), squeeze=False)
        draw(axes[:, 0])
        figure.tight_layout()
        box = "tight" if width == WIDTH else None  # a width that was asked for is kept
        figure.savefig(path, dpi=300 if path.suffix == ".png" else None, bbox_inches=box)
        pyplot.close(figure)
