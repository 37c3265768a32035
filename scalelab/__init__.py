"""scalelab: a lab for the science of scaling RL of language models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalelab.experiment import Experiment
    from scalelab.notebook import Advice, Runs

__version__ = "0.2.0"
__all__ = ["__version__", "decide", "load_runs", "run_experiment"]


def load_runs(
    *sources: Any,
    columns: Mapping[str, str] | None = None,
    compute_scale: float | None = None,
    unit: str | None = None,
    mapping: str | Path | None = None,
) -> Runs:
    """Read runs to look at in a notebook, or to fit in a script.

    Args:
        *sources: run folders, folders of runs, CSV, JSON-lines or Parquet files, TensorBoard folders, W&B exports,
            patterns of these such as `"runs/*/seed_*"`, and pandas DataFrames with the columns of a file.
        columns: our name → the source's name of a column, such as `{"compute": "_step", "pass_rate": "val/acc"}`.
        compute_scale: hours per unit of compute read.
        unit: unit of compute, where the source does not say it.
        mapping: settings that `scalelab read --save` wrote; the others come before them.

    Returns:
        The runs, with `fit()`, `plot()` and `to_frame()`.

    Raises:
        LabError: a source cannot be read; the message says why and what to do.
    """
    from scalelab.notebook import load  # imports NumPy and SciPy, which `import scalelab` alone should not

    return load(sources, columns, compute_scale, unit, mapping)


def decide(*sources: Any, budget: float, worthwhile: float | None = None, **options: Any) -> Advice:
    """Decide how to spend further compute: extend a run, add a seed, or try another setting.

    Args:
        *sources: as `load_runs` takes them, or what it returned.
        budget: compute to spend, in the unit of the runs.
        worthwhile: gain in pass rate below which another setting is proposed; None takes the usual.
        **options: fields of `scalelab.curves.Options`, such as `since=0.01`.

    Returns:
        The advice, which prints as sentences; `to_frame()` lists the choices.

    Raises:
        LabError: a source cannot be read, or no run carries a fit.
    """
    from scalelab.notebook import decided

    return decided(sources, budget, worthwhile, options)


def run_experiment(
    experiment: str | Path | Experiment,
    sets: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    virtual: bool = False,
) -> Runs:
    """Run an experiment from a notebook or a script; its progress is printed as it goes.

    The run is a process of its own. Interrupting the cell ends it in order, with a checkpoint.

    Args:
        experiment: a name such as `"quickstart"`, a Python file, the `config.gin` of a run, or an `Experiment`.
        sets: values over all others, such as `{"OptimizerConfig.lr": 1e-4, "Recipe.loss": "DAPO"}`.
        out: folder of the run; None takes `runs/NAME`, or the next that is free.
        virtual: run on a simulated clock, in one process.

    Returns:
        The run (of a family, its runs), with `fit()`, `plot()` and `to_frame()`.

    Raises:
        LabError: the run failed; the message says why and what to do.
    """
    from scalelab.launch import launch

    return launch(experiment, sets or {}, out, virtual)
