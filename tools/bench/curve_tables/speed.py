"""Time of fits and imports."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from curve_tables.common import ROOT, SAMPLES, TABLE_1, markdown, sigmoid
from scalelab.curves import analyse, curve, fit_curve
from scalelab.curves.data import Curve, binomial_stderr
from scalelab.curves.fitting.intervals import bootstrap
from scalelab.curves.fitting.noise import DEFAULT
from scalelab.curves.fitting.paper import fit_paper
from scalelab.curves.fitting.posterior import posterior


def timed(call: Callable[[], object], repeats: int) -> float:
    """Least seconds that a call took: what it needs, not what else the machine did."""
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return min(spent)


def speed_section() -> str:
    fits = list(_fit_race())
    ratio = [paper / joint for joint, paper, _, _ in fits]
    rows = [
        [f"{1e3 * joint:.1f} ms", f"{paper:.2f} s", f"{paper / joint:.0f}×", f"{joint_rss:.3e}", f"{paper_rss:.3e}"]
        for joint, paper, joint_rss, paper_rss in fits
    ]
    table = markdown(
        ["joint, default", "the paper's grid", "ratio", "joint: sum of squares", "grid: sum of squares"], rows
    )
    item = _points_75(0)
    fit = fit_curve(item)
    bootstrap(fit, size=10)
    refits = {kind: timed(lambda kind=kind: bootstrap(fit, kind, size=1000), 3) for kind in ("block", "parametric")}
    drawn = timed(lambda: posterior(fit, DEFAULT), 3)
    whole = timed(lambda: analyse(item), 3)
    wall, cpu, modules = import_time()
    never_worse = all(joint_rss <= paper_rss for _, _, joint_rss, paper_rss in fits)
    facts = [
        ["one default fit of 75 points against the paper's grid", f"{min(ratio):.0f}–{max(ratio):.0f} times faster"],
        ["never worse in residual", "yes" if never_worse else "NO"],
        [
            "1,000 bootstrap refits of 75 points, blocks / parametric",
            f"{refits['block']:.2f} s / {refits['parametric']:.2f} s",
        ],
        ["4,000 posterior draws", f"{drawn:.3f} s"],
        ["everything `scalelab fit` says of a curve (two posteriors, back-test)", f"{whole:.3f} s"],
        ["importing `scalelab.curves`: processor time / least wall time", f"{cpu:.2f} s / {wall:.2f} s"],
        ["torch, SciPy, matplotlib among the imported modules", modules or "none"],
    ]
    return f"{table}\n\n{markdown(['what', 'figure'], facts)}"


def _points_75(seed: int) -> Curve:
    rng = np.random.default_rng(seed)
    C_mid, B, A = list(TABLE_1.values())[seed]
    compute = np.arange(1, 76) * 20 * C_mid / 75
    rate = rng.binomial(SAMPLES, sigmoid(compute, 0.4, A, B, C_mid)) / SAMPLES
    return curve(compute, rate, [binomial_stderr(p, SAMPLES) for p in rate])


def _fit_race() -> Iterator[tuple[float, float, float, float]]:
    """Seconds and sums of squares of both methods on the same points, one after the other."""
    for seed in range(len(TABLE_1)):
        item = _points_75(seed)
        joint, paper = fit_curve(item, r0=0.4), None
        joint_seconds = timed(lambda item=item: fit_curve(item, r0=0.4), 20)
        began = time.perf_counter()
        paper = fit_paper(item, r0=0.4)
        yield joint_seconds, time.perf_counter() - began, joint.rss, paper.rss


def import_time() -> tuple[float, float, str]:
    """Least wall and processor seconds of an import in a fresh interpreter, its start taken off, and heavy modules."""
    heavy = ["torch", "scipy", "matplotlib", "ray", "vllm"]
    code = f"import sys, scalelab.curves; print(*[m for m in {heavy} if m in sys.modules])"
    spent = {"pass": [], code: []}  # type: dict[str, list[tuple[float, float]]]
    modules = ""
    for _ in range(7):
        for text, measured in spent.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=ROOT)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            measured.append((time.perf_counter() - began, cpu))
            modules = done.stdout.strip() if text == code else modules
    bare, full = (np.min(measured, axis=0) for measured in spent.values())
    return float(full[0] - bare[0]), float(full[1] - bare[1]), modules
