"""The paper's own run, fitted over the windows of its text."""

from __future__ import annotations

from curve_tables.common import DENSE, PAPER_R0, markdown
from scalelab.curves import POWER, SIGMOID, fit_curve, read_sources
from scalelab.curves.data import Curve


def dense() -> Curve:
    (published,) = read_sources([DENSE])
    return published


def paper_section() -> str:
    published = dense()
    windows = {
        (1500, 50_000): "B 1.70, A 0.645; power law A 1.0",
        (0, 100_000): "B 1.56, A 0.655",
        (0, 50_000): "B 1.70, A 0.645",
        (5000, 50_000): "B 1.67, A 0.645; power law A 0.74",
    }
    rows = []
    for (since, until), claimed in windows.items():
        cells = []
        for model, r0 in ((SIGMOID, PAPER_R0), (SIGMOID, None), (POWER, None)):
            fit = fit_curve(published, model, since=since, until=until, r0=r0)
            cells.append(", ".join(f"{name} {fit.parameters[name]:.3g}" for name in ("B", "A")))
        rows.append([f"{since / 1000:g}k–{until / 1000:g}k", claimed, *cells])
    return markdown(["window", "paper", f"sigmoid, R0 {PAPER_R0}", "sigmoid, R0 free", "power law"], rows)
