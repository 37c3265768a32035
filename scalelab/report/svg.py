"""Charts as inline SVG: enough of a plotting library for a page that needs no network and no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

PALETTE = (
    *("#2457d6", "#d9480f", "#0b7a5b", "#7b2cbf", "#b5179e"),
    *("#0e7490", "#a16207", "#475569", "#7f1d1d", "#4d7c0f", "#111827"),
)
"""Colours of tasks and runs, in order; dark enough to read on white and apart for most colour-blind eyes."""

INK, MUTED, RULE = "#1f2733", "#6b7684", "#e6e9ee"


@dataclass(frozen=True)
class Line:
    """A polyline; `dash` for what is extrapolated."""

    x: Sequence[float]
    y: Sequence[float]
    color: str
    label: str = ""
    dash: bool = False
    width: float = 2.0
    opacity: float = 1.0


@dataclass(frozen=True)
class Points:
    """Dots with optional error bars of one standard error; hollow ones were not fitted."""

    x: Sequence[float]
    y: Sequence[float]
    color: str
    label: str = ""
    error: Sequence[float] | None = None
    hollow: bool = False
    radius: float = 3.2


@dataclass(frozen=True)
class Band:
    """The area between two lines."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    color: str
    label: str = ""
    opacity: float = 0.14


@dataclass(frozen=True)
class Mark:
    """A vertical dotted line with a word beside it."""

    x: float
    label: str
    color: str = MUTED


Series = Line | Points | Band | Mark


@dataclass(frozen=True)
class Chart:
    """What to draw and how large.

    Attributes:
        series: drawn in order.
        x_label: title of the x-axis.
        y_label: title of the y-axis, written above it.
        log_x: logarithmic x-axis; points at or below zero are left out.
        log_y: logarithmic y-axis.
        x_range: limits of x; None takes them from the data.
        y_range: limits of y; None takes them from the data.
        width: in pixels.
        height: in pixels.
        legend: whether to write the labels above the plot.
    """

    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    width: int = 720
    height: int = 400
    legend: bool = True


@dataclass(frozen=True)
class Axis:
    """Maps data to pixels along one direction."""

    low: float
    high: float
    start: float
    stop: float
    log: bool

    def __call__(self, at: float) -> float:
        """Pixel of a value; far outside the limits it stops just beyond the edge."""
        if self.log:
            share = math.log(max(at, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            share = (at - self.low) / (self.high - self.low)
        return self.start + min(max(share, -0.5), 1.5) * (self.stop - self.start)

    def shows(self, at: float) -> bool:
        """Whether a value can be drawn at all."""
        return math.isfinite(at) and (at > 0 or not self.log)


def ticks(low: float, high: float, log: bool = False, target: int = 6) -> list[float]:
    """Round values between the limits, about `target` of them."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        decades = [10.0**power for power in powers[:: 1 + len(powers) // (target + 3)]]
        for steps in ((1,), (1, 3), (1, 2, 5)):
            marks = [decade * step for decade in decades for step in steps if low <= decade * step <= high * 1.0001]
            if len(marks) >= 4:
                return marks
        return marks if len(marks) >= 2 else ticks(low, high)
    raw = (high - low) / max(target, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * multiple for multiple in (1, 2, 2.5, 5, 10) if power * multiple >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * count, 12) for count in range(first, math.floor(high / step + 1e-9) + 1)]


def number(at: float) -> str:
    """A tick's label: 12k, 0.25, 3e-05."""
    if at == 0:
        return "0"
    size = abs(at)
    if size >= 1e6:
        return f"{at / 1e6:g}M"
    if size >= 1e4:
        return f"{at / 1e3:g}k"
    if size < 1e-3:
        return f"{at:.0e}".replace("e-0", "e-")
    return f"{at:.6g}"


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element that scales with its container."""
    left, right, bottom = 52, 16, 44 if chart.x_label else 26
    labelled = [item for item in chart.series if item.label and not isinstance(item, Mark)]
    rows = _legend_rows(labelled, chart.width - left - right) if chart.legend and labelled else []
    legend_top = 32 if chart.y_label else 14
    top = (26 if chart.y_label else 12) + (5 + 17 * len(rows) if rows else 0)
    x_low, x_high = chart.x_range or _extent(_values(chart.series, "x"), chart.log_x, 0.02)
    y_low, y_high = chart.y_range or _extent(_values(chart.series, "y"), chart.log_y, 0.06)
    x = Axis(x_low, x_high, left, chart.width - right, chart.log_x)
    y = Axis(y_low, y_high, chart.height - bottom, top, chart.log_y)
    clip = f"c{abs(hash((chart.width, chart.height, left, top, bottom)))}"
    parts = [
        f'<svg viewBox="0 0 {chart.width} {chart.height}" role="img" class="chart">',
        f'<clipPath id="{clip}"><rect x="{left}" y="{top - 4}" width="{chart.width - left - right}" '
        f'height="{chart.height - top - bottom + 8}"/></clipPath>',
        *_grid(x, y, chart),
        f'<g clip-path="url(#{clip})">',
        *(_series(item, x, y) for item in chart.series),
        "</g>",
    ]
    if chart.y_label:
        parts.append(f'<text x="{left - 40}" y="14" class="axis">{escape(chart.y_label)}</text>')
    if chart.x_label:
        parts.append(
            f'<text x="{(left + chart.width - right) / 2:.1f}" y="{chart.height - 6}" class="axis" '
            f'text-anchor="middle">{escape(chart.x_label)}</text>'
        )
    parts += _legend(labelled, rows, left, legend_top)
    return "\n".join([*parts, "</svg>"])


def _values(series: Sequence[Series], direction: str) -> list[float]:
    values: list[float] = []
    for item in series:
        if isinstance(item, Mark):
            values += [item.x] if direction == "x" else []
        elif direction == "x":
            values += list(item.x)
        elif isinstance(item, Band):
            values += [*item.low, *item.high]
        else:
            values += list(item.y)
    return [value for value in values if math.isfinite(value)]


def _extent(values: Sequence[float], log: bool, margin: float) -> tuple[float, float]:
    values = [value for value in values if value > 1e-30] if log else values
    if not values:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(values), max(values)
    if log:
        spread = max(math.log(high / low), 0.1) * margin
        return low * math.exp(-spread), high * math.exp(spread)
    spread = (high - low) or abs(high) or 1.0
    return (low if low == 0 else low - margin * spread), high + margin * spread


def _grid(x: Axis, y: Axis, chart: Chart) -> list[str]:
    parts = []
    for at in ticks(y.low, y.high, chart.log_y, target=max(3, int((y.start - y.stop) // 48))):
        parts.append(
            f'<line x1="{x.start:.1f}" x2="{x.stop:.1f}" y1="{y(at):.1f}" y2="{y(at):.1f}" stroke="{RULE}"/>'
            f'<text x="{x.start - 8:.1f}" y="{y(at) + 4:.1f}" class="tick" text-anchor="end">{number(at)}</text>'
        )
    for at in ticks(x.low, x.high, chart.log_x, target=max(3, int((x.stop - x.start) // 90))):
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y.start:.1f}" y2="{y.start + 4:.1f}" stroke="{MUTED}"/>'
            f'<text x="{x(at):.1f}" y="{y.start + 18:.1f}" class="tick" text-anchor="middle">{number(at)}</text>'
        )
    parts.append(f'<line x1="{x.start:.1f}" x2="{x.stop:.1f}" y1="{y.start:.1f}" y2="{y.start:.1f}" stroke="{MUTED}"/>')
    return parts


def _series(item: Series, x: Axis, y: Axis) -> str:
    if isinstance(item, Mark):
        at = x(item.x)
        return (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y.start:.1f}" y2="{y.stop:.1f}" stroke="{item.color}" '
            f'stroke-dasharray="2 3"/><text x="{at + 4:.1f}" y="{y.start - 6:.1f}" class="tick">'
            f"{escape(item.label)}</text>"
        )
    if isinstance(item, Band):
        edge = [(at, low, high) for at, low, high in zip(item.x, item.low, item.high) if x.shows(at)]
        path = [(x(at), y(low)) for at, low, _ in edge] + [(x(at), y(high)) for at, _, high in reversed(edge)]
        return f'<path d="{_path(path)}Z" fill="{item.color}" fill-opacity="{item.opacity}"/>'
    shown = [index for index, (a, b) in enumerate(zip(item.x, item.y)) if x.shows(a) and y.shows(b)]
    if isinstance(item, Line):
        dash = ' stroke-dasharray="6 4"' if item.dash else ""
        path = [(x(item.x[index]), y(item.y[index])) for index in shown]
        return (
            f'<path d="{_path(path)}" fill="none" stroke="{item.color}" stroke-width="{item.width}" '
            f'stroke-opacity="{item.opacity}" stroke-linejoin="round"{dash}/>'
        )
    fill = "#fff" if item.hollow else item.color
    parts = []
    for index in shown:
        across, up = x(item.x[index]), y(item.y[index])
        if item.error is not None:
            low, high = y(item.y[index] - item.error[index]), y(item.y[index] + item.error[index])
            parts.append(
                f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{item.color}" '
                'stroke-opacity="0.45" stroke-width="1.2"/>'
            )
        title = f"{number(item.x[index])}: {item.y[index]:.4g}"
        parts.append(
            f'<circle cx="{across:.1f}" cy="{up:.1f}" r="{item.radius}" fill="{fill}" stroke="{item.color}" '
            f'stroke-width="1.4"><title>{escape(title)}</title></circle>'
        )
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if index else 'M'}{a:.1f} {b:.1f}" for index, (a, b) in enumerate(points))


def _legend(items: Sequence[Line | Points | Band], rows: Sequence[Sequence[int]], left: float, top: float) -> list[str]:
    parts = []
    for row, members in enumerate(rows):
        at, baseline = left, top + 17 * row
        for item in (items[index] for index in members):
            parts.append(_key(item, at, baseline))
            parts.append(f'<text x="{at + 24:.1f}" y="{baseline}" class="legend">{escape(item.label)}</text>')
            at += _legend_width(item.label)
    return parts


def _legend_width(label: str) -> float:
    return 40 + 6.4 * len(label)


def _legend_rows(items: Sequence[Line | Points | Band], width: float) -> list[list[int]]:
    """Which items stand in which row of the legend."""
    rows: list[list[int]] = [[]]
    used = 0.0
    for index, item in enumerate(items):
        needed = _legend_width(item.label)
        if rows[-1] and used + needed > width:
            rows.append([])
            used = 0.0
        rows[-1].append(index)
        used += needed
    return rows


def _key(item: Line | Points | Band, at: float, baseline: float) -> str:
    if isinstance(item, Line):
        dash = ' stroke-dasharray="6 4"' if item.dash else ""
        return (
            f'<line x1="{at}" x2="{at + 18}" y1="{baseline - 4}" y2="{baseline - 4}" stroke="{item.color}" '
            f'stroke-width="2.2"{dash}/>'
        )
    if isinstance(item, Band):
        return f'<rect x="{at}" y="{baseline - 10}" width="18" height="11" fill="{item.color}" fill-opacity="0.25"/>'
    fill = "#fff" if item.hollow else item.color
    return f'<circle cx="{at + 9}" cy="{baseline - 4}" r="3.4" fill="{fill}" stroke="{item.color}" stroke-width="1.4"/>'
