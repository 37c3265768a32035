"""`Curve`: the evaluations of one task in one run, checked when it is made.

Axes: `_N` points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from scalelab.arrays import Array
from scalelab.errors import LabError
from scalelab.numbers import compact

UNITS = {"gpu_hours": "GPU-hours", "core_hours": "core-hours"}
"""Compute columns that name their unit."""

MOST_COMPUTE = 1e100
"""Most compute, and with its inverse the least: curves are looked at far from it, and its powers must be numbers."""

MOST_ERROR = 0.5
"""Largest standard error of a mean of numbers in [0, 1]: of one sample, half of which are 0 and half 1."""

FitWindow: TypeAlias = tuple[float | None, float | None]
"""Compute from which and up to which points are fitted; None leaves an end open."""


@dataclass(frozen=True)
class Curve:
    """Pass rate against compute for one task of one run, over one or several seeds, sorted by compute.

    Attributes:
        source: file or folder it came from.
        run: name of the run; the seeds of one run share it.
        task: name of the task.
        compute_N: training compute, 0 at the step-0 evaluation, which is the measured R0.
        pass_rate_N: mean pass rate on the held-out prompts, in [0, 1].
        stderr_N: its standard error, or None where nothing is known of the samples behind it.
        seed_N: which of `seeds` a point belongs to.
        seeds: names of the seeds.
        unit: unit of compute.
        epoch_end: compute at which the first pass over the training prompts ended, where the run says so.
        fit_window: compute from and up to which the run's experiment wants it fitted; None leaves an end open.
        notes: what a reader of the fit should know about the data.
        recipe: what runs that differ in their seed alone have in common; empty where no source says it.
        clock: `virtual` for compute in hours of a simulated cluster, `wall` for measured hours; empty where unknown.
        places: numbers that hold for the whole run, by name: where it stands on scaling axes.
        bases: digests of the base models that its seeds started from; empty where unknown.
        fork: step at which a branch went on from another run, which earlier evaluations are of; None for other runs.
        measure: name of `pass_rate_N` in the field's words, such as "pass rate", "mean reward" or "pass@4".
        other_N: other numbers of each point, by name, such as steps, tokens and hours by role; NaN where unknown.
    """

    source: str
    run: str
    task: str
    compute_N: Array
    pass_rate_N: Array
    stderr_N: Array | None = None
    seed_N: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    seeds: tuple[str, ...] = ("",)
    unit: str = "compute"
    epoch_end: float | None = None
    fit_window: FitWindow = (None, None)
    notes: tuple[str, ...] = ()
    recipe: str = ""
    clock: str = ""
    places: Mapping[str, float] = field(default_factory=dict)
    bases: tuple[str, ...] = ()
    fork: float | None = None
    measure: str = "pass rate"
    other_N: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.compute_N)

    def __repr__(self) -> str:
        reached = compact(self.compute_N.max(initial=0.0))
        return f"<Curve {self.name}: {len(self)} evaluations up to {reached} {self.unit}>"

    @property
    def counted_in(self) -> str:
        """Unit of compute, and whose hours they are if no real device spent them."""
        return f"{self.unit} of a simulated cluster" if self.simulated else self.unit

    @property
    def simulated(self) -> bool:
        """True if compute is in hours of a simulated cluster."""
        return self.clock == "virtual" and self.unit.endswith("-hours")

    @property
    def name(self) -> str:
        """Name of the curve in messages."""
        return f"{self.run} · {self.task}" if self.task else self.run

    def select(self, keep_N: np.ndarray) -> Curve:
        """The curve with only the points that `keep_N` (mask or indices) names, and the seeds that have any."""
        stderr_N = None if self.stderr_N is None else self.stderr_N[keep_N]
        present, seed_N = np.unique(self.seed_N[keep_N], return_inverse=True)
        return replace(
            self,
            compute_N=self.compute_N[keep_N],
            pass_rate_N=self.pass_rate_N[keep_N],
            stderr_N=stderr_N,
            seed_N=seed_N,
            seeds=tuple(self.seeds[seed] for seed in present),
            other_N={name: value_N[keep_N] for name, value_N in self.other_N.items()},
        )


def merge_neighbours(item: Curve, limit: int) -> tuple[Curve, np.ndarray]:
    """Average neighbours of one seed until about `limit` points are left; also returns the group of each point.

    Thousands of noisy evaluations say no more about four parameters than their local means, and intervals that allow
    for drift take time that grows with the cube of the points.

    Returns:
        The merged curve, and for each of the curve's points `[N]` a number that those merged into one point share.
    """
    per_seed = max(limit // len(item.seeds), 10)
    group_N = np.zeros(len(item), int)
    for seed in range(len(item.seeds)):
        mine = np.flatnonzero((item.seed_N == seed) & (item.compute_N > 0))
        together = max(-(-len(mine) // per_seed), 1)
        groups = -(-len(mine) // together)  # as many points in each, give or take one, so that all weigh the same
        group_N[mine] = 1 + seed * per_seed + np.arange(len(mine)) * groups // max(len(mine), 1)
    start_N = item.compute_N == 0
    group_N[start_N] = -1 - np.arange(start_N.sum())
    _, index_N = np.unique(group_N, return_inverse=True)
    count_M = np.bincount(index_N)

    def mean(values_N: Array) -> Array:
        # unweighted: the binomial error of few samples follows the rate that was seen, and would draw the mean along
        return np.bincount(index_N, values_N) / count_M

    merged = replace(
        item,
        compute_N=mean(item.compute_N),
        pass_rate_N=mean(item.pass_rate_N),
        stderr_N=None if item.stderr_N is None else np.sqrt(mean(item.stderr_N**2) / count_M),
        seed_N=np.rint(mean(item.seed_N)).astype(int),
        other_N={name: mean(value_N) for name, value_N in item.other_N.items()},
    )
    return merged.select(np.lexsort((merged.seed_N, merged.compute_N))), index_N


def curve(
    compute: Sequence[float] | Array,
    pass_rate: Sequence[float] | Array,
    stderr: Sequence[float] | Array | None = None,
    *,
    seed: Sequence[object] | None = None,
    source: str = "",
    run: str = "run",
    task: str = "",
    unit: str = "compute",
    epoch_end: float | None = None,
    fit_window: FitWindow = (None, None),
    notes: Sequence[str] = (),
) -> Curve:
    """A checked `Curve` from plain sequences in any order.

    Args:
        compute: training compute of each evaluation, finite and ≥ 0; 0 is the step-0 evaluation.
        pass_rate: mean pass rates in [0, 1].
        stderr: their standard errors, > 0.
        seed: which seed each point belongs to, if the run has several.
        source: what messages call the data.
        run: name of the run.
        task: name of the task.
        unit: unit of compute.
        epoch_end: compute at which the first epoch ended, if known.
        fit_window: compute from and up to which the curve is to be fitted, if known.
        notes: passed on to the fit's warnings.

    Raises:
        LabError: a value out of range, or two points of one seed at one compute.
    """
    columns = {"compute": compute, "pass_rate": pass_rate} | ({} if stderr is None else {"stderr": stderr})
    arrays = {name: _numbers(values, name, source or run) for name, values in columns.items()}
    points = len(arrays["compute"])
    labels = [str(label) for label in seed] if seed is not None else [""] * points
    for name, count in {**{name: len(values) for name, values in arrays.items()}, "seed": len(labels)}.items():
        if count != points:
            raise LabError(f"{source or run}: {count} values of {name} for {points} points")
    seeds = list(dict.fromkeys(labels))
    result = Curve(
        source=source,
        run=run,
        task=task,
        compute_N=arrays["compute"],
        pass_rate_N=arrays["pass_rate"],
        stderr_N=arrays.get("stderr"),
        unit=unit,
        epoch_end=epoch_end,
        fit_window=fit_window,
        notes=tuple(notes),
    )
    result = checked_curve(result, seeds, np.array([seeds.index(label) for label in labels], int))
    _refuse_duplicates(result)
    return result


def checked_curve(item: Curve, seeds: Sequence[str], seed_N: np.ndarray) -> Curve:
    """The curve with its seeds in the order of their names, and its points in the order of compute.

    Args:
        item: the curve, its points in any order.
        seeds: names of seeds.
        seed_N: which of them each point belongs to.
    """
    order = sorted(range(len(seeds)), key=lambda index: seeds[index])
    place_S = np.argsort(order)
    named = replace(item, seeds=tuple(seeds[index] for index in order), seed_N=place_S[seed_N])
    return named.select(np.lexsort((named.seed_N, named.compute_N)))


def _numbers(values: Sequence[float] | Array, column: str, where: str) -> Array:
    """Checked values of one column."""
    if not hasattr(values, "__len__") or getattr(values, "ndim", 1) != 1:
        raise LabError(f"{where}, column {column}: not a plain sequence; give one number for each evaluation")
    found_N = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            found_N[row] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise LabError(
                f"{where}, row {row + 1}, column {column}: {value!r:.60} is not a number; mend it or leave it out"
            ) from None
    check_numbers(found_N, column, lambda row: f"{where}, row {row + 1}, column {column}")
    return found_N


def check_numbers(number_N: Array, column: str, place: Callable[[int], str]) -> None:
    """Refuse numbers of which one cannot be what its column says.

    Args:
        number_N: the numbers.
        column: our name of the column.
        place: file, row and column of a number, by its index.

    Raises:
        LabError: with the place of the first such number, the number and what to do.
    """
    wrong_N = ~np.isfinite(number_N)
    if column == "compute":
        wrong_N |= (number_N < 0) | (number_N > MOST_COMPUTE) | ((number_N > 0) & (number_N < 1 / MOST_COMPUTE))
    elif column == "pass_rate":
        wrong_N |= ~((number_N >= 0) & (number_N <= 1))
    elif column == "stderr":
        wrong_N |= ~((number_N > 0) & (number_N <= MOST_ERROR))
    elif column in ("n", "n_prompts", "k"):
        wrong_N |= ~(number_N > 0)
    if wrong_N.any():
        at = int(np.argmax(wrong_N))
        finite_N = number_N[np.isfinite(number_N)]
        raise LabError(f"{place(at)}: {_remedy(float(number_N[at]), column, float(finite_N.max(initial=0)))}")


def _remedy(number: float, column: str, largest: float) -> str:
    """Wrong number, and what to do about it.

    Args:
        number: the number.
        column: our name of its column.
        largest: the largest finite number of the column, which tells percentages from scores.
    """
    if not np.isfinite(number):
        return f"{number} is not a number; remove the row or fill it in"
    if column == "compute":
        if number < 0:
            return f"{number:g} is negative; compute counts from the start of RL"
        return f"{number:g} is no compute; give it in a unit in which it has fewer digits"
    if column == "stderr" and number > MOST_ERROR:
        return f"{number:g} is no standard error of a rate in [0, 1]; give it in the unit of the pass rates"
    if column != "pass_rate":
        return f"{number:g} is not positive; leave the column out if unknown"
    hint = "only rates in [0, 1] can be fitted"
    if 1 < largest <= 2 and number > 0:
        hint = f"of a score say what counts as 1, such as --rate-range 0 {largest:.3g}; a loss is no pass rate"
    elif 1 < number <= 100:
        hint = "divide percentages by 100 (--rate-range 0 100); a loss is no pass rate"
    elif number < 0:
        hint = "only rates in [0, 1] can be fitted; rewards in [-1, 1] with --rate-range -1 1"
    return f"{number:g} lies outside [0, 1]; {hint}"


def binomial_stderr(pass_rate: Any, n: Any) -> Any:
    """Standard error of a mean of `n` passes and failures, kept above zero at 0 and 1 (Agresti–Coull).

    Args:
        pass_rate: the mean, a number or `[N]`.
        n: how many, a number or `[N]`.
    """
    shrunk = (pass_rate * n + 2) / (n + 4)
    return np.sqrt(shrunk * (1 - shrunk) / (n + 4))


def same_unit(curves: Sequence[Curve]) -> str:
    """The unit that all curves share.

    Raises:
        LabError: they count compute in different units, or some on the wall clock and some on a simulated one.
    """
    clocks = {item.clock: item.source for item in curves if item.clock}
    if len(clocks) > 1:
        listing = "; ".join(f"{clock} in {source}" for clock, source in clocks.items())
        raise LabError(f"hours of different clocks ({listing}) cannot be compared: give the sources separately")
    units: Mapping[str, str] = {item.unit: item.source for item in curves}
    if len(units) > 1:
        listing = "; ".join(f"{unit} in {source}" for unit, source in units.items())
        raise LabError(f"mixed units of compute ({listing}): convert one, or give the sources separately")
    return next(iter(units), "compute")


def _refuse_duplicates(item: Curve) -> None:
    same_N = (np.diff(item.compute_N) == 0) & (np.diff(item.seed_N) == 0)
    if same_N.any():
        at = item.compute_N[np.argmax(same_N)]
        raise LabError(
            f"{item.source or item.run}, column compute: two points of {item.name} at {at:g} {item.unit}; "
            "keep one, or tell the runs apart by a run or seed column"
        )
