"""The paper's own run and its Table 1, and the forecast from 16k GPU-hours."""

from __future__ import annotations

import numpy as np

from curve_tables.common import DENSE, PAPER_R0, SAMPLES, TABLE_1, markdown, sigmoid
from scalelab.curves import POWER, SIGMOID, Options, analyse, curve, fit_curve, forecast, read_sources
from scalelab.curves.data import Curve, binomial_stderr
from scalelab.curves.fitting.intervals import intervals
from scalelab.curves.fitting.paper import fit_paper
from scalelab.curves.fitting.posterior import posterior


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
    table = markdown(["window", "paper", f"sigmoid, R0 {PAPER_R0}", "sigmoid, R0 free", "power law"], rows)
    return f"{table}\n\n{recovery_table()}"


def recovery_table(repeats: int = 40) -> str:
    """Every row of Table 1, simulated at its parameters with the paper's noise, and fitted."""
    rows = []
    for index, (name, (C_mid, B, A)) in enumerate(TABLE_1.items()):
        budget = float(np.clip(10 * C_mid, 16_000, 100_000))
        compute = np.concatenate([[0], np.arange(1350, budget, 1350)])
        rng = np.random.default_rng(index)
        found, covered = [], []
        for _ in range(repeats):
            rate = rng.binomial(SAMPLES, sigmoid(compute, 0.4, A, B, C_mid)) / SAMPLES
            fit = fit_curve(curve(compute, rate, [binomial_stderr(p, SAMPLES) for p in rate]))
            interval = intervals(fit, posterior(fit, fit.prior, size=1500), 0.8)
            found.append([fit.parameters[key] for key in ("A", "B", "C_mid")])
            covered.append(interval["A"][0] <= A <= interval["A"][1])
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0)
        rows.append(
            [
                name,
                f"{A:.3f} → {mean[0]:.3f} ± {spread[0]:.3f}",
                f"{B:.2f} → {mean[1]:.2f} ± {spread[1]:.2f}",
                f"{C_mid} → {mean[2]:.0f} ± {spread[2]:.0f}",
                f"{np.abs(np.array(found)[:, 0] - A).max():.3f}",
                f"{np.mean(covered):.0%}",
                f"{len(compute) - 1} to {budget / 1000:.0f}k",
            ]
        )
    header = ["run", "A: true → fitted ± sd", "B", "C_mid", "largest error of A", "80 % intervals hold A", "points"]
    return f"Table 1, simulated ({repeats} times each, R0 0.40, an evaluation every 1,350 GPU-hours):\n\n" + markdown(
        header, rows
    )


def forecast_section() -> str:
    published = dense()
    later = published.select(published.compute_N > 49_000)
    rows, notes = [], []
    columns: dict[str, tuple[np.ndarray, list[tuple[float, float]] | None]] = {}
    for label, r0 in ((f"joint, R0 {PAPER_R0}", PAPER_R0), ("joint, R0 free", None)):
        analysis = analyse(published, Options(since=1500, until=16_000, r0=r0))
        found = forecast(analysis, later.compute_N.tolist())
        columns[label] = (np.array([one.value for one in found]), [one.interval for one in found])
    paper = fit_paper(published, since=1500, until=16_000, r0=PAPER_R0)
    columns[f"the paper's grid, R0 {PAPER_R0}"] = (paper.value(later.compute_N), None)
    for label, (value_N, bands) in columns.items():
        error_N = value_N - later.pass_rate_N
        inside = sum(low <= rate <= high for (low, high), rate in zip(bands, later.pass_rate_N)) if bands else None
        rows.append(
            [
                label,
                f"{inside} of {len(later)}" if bands else "no band",
                f"{np.abs(error_N).mean():.4f}",
                f"{error_N.mean():+.4f}",
            ]
        )
    notes.append(markdown(["fit on 1.5k–16k", "in the 80 % band", "mean absolute error", "mean error"], rows))
    detail = [
        [f"{at:,.0f}", f"{rate:.4f}"]
        + [
            f"{value_N[i]:.3f}" + (f" [{bands[i][0]:.3f}, {bands[i][1]:.3f}]" if bands else "")
            for value_N, bands in columns.values()
        ]
        for i, (at, rate) in enumerate(zip(later.compute_N, later.pass_rate_N))
    ]
    notes.append(markdown(["GPU-hours", "measured", *columns], detail))
    return "\n\n".join(notes)
