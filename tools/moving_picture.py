"""Draw docs/assets/curve.gif: a run's points, fit, band and forecast as its evaluations come in.

python tools/moving_picture.py docs/quickstart/seed0 docs/assets/curve.gif
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from scalelab.curves import Curve, FitError, analyse, extend_or_stop, read_sources
from scalelab.curves.forecast import band

COLORS = {"code": "#d55e00", "math": "#0072b2"}
FIRST, FRAME_MS, LAST_MS = 3, 450, 3500


def frame(curves: list[Curve], count: int) -> Image.Image:
    """The run after its first `count` evaluations."""
    figure = Figure(figsize=(7.2, 3.6), dpi=110, layout="constrained")
    axis = figure.add_subplot()
    end = 1.5 * max(curve.compute_N.max() for curve in curves)
    grid = np.linspace(end / 400, end, 300)
    words = []
    for curve in curves:
        color, seen = COLORS[curve.task], curve.select(np.arange(count))
        spent = seen.compute_N.max()
        axis.errorbar(seen.compute_N, seen.pass_rate_N, yerr=seen.stderr_N, fmt="o", ms=4, color=color, elinewidth=1)
        try:
            found = analyse(seen)
        except FitError:
            continue
        low, middle, high = band(found, grid)
        axis.fill_between(grid, low, high, color=color, alpha=0.15, lw=0)
        past = grid <= spent
        axis.plot(grid[past], middle[past], color=color, lw=2, label=curve.task)
        axis.plot(grid[~past], middle[~past], color=color, lw=2, ls="--")
        low_a, high_a = found.intervals["A"]
        words.append(f"{curve.task}: A in {low_a:.2f}–{high_a:.2f}, {extend_or_stop(found).reading.partition(':')[0]}")
    axis.set(xlim=(0, end), ylim=(0.15, 1.0), xlabel=f"compute ({curves[0].unit})", ylabel="held-out pass rate")
    axis.set_title("   ·   ".join(words) or "not enough points for a curve yet", fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#e6e9ee")
    if words:
        axis.legend(loc="lower right", frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    curves = read_sources([args.run])
    *before, last = [frame(curves, count) for count in range(FIRST, len(curves[0]) + 1)]
    # The whole picture comes first: where nothing moves (print, reduced motion) people see the end.
    times = [LAST_MS] + [FRAME_MS] * len(before)
    last.save(args.out, save_all=True, append_images=before, duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    main()
