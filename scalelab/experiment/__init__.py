"""Experiments: Python files that compose gin fragments, resolved and checked before anything starts.

An experiment file is a docstring and

    from scalelab.experiment import Experiment

    experiment = Experiment(
        fragments=("model/scout_miniature", "recipe/scalerl", "tasks/math_code_miniature", "cluster/laptop"),
        overrides={"OptimizerConfig.lr": 3e-4},
    )
"""

from scalelab.experiment.definition import Experiment
from scalelab.experiment.library import Listed, listing, load, resolve, resolve_experiment
from scalelab.experiment.resolved import Resolved, SettingDifference
from scalelab.experiment.syntax import SEED, recipe_digest, settings_in

__all__ = [
    "SEED",
    "Experiment",
    "Listed",
    "Resolved",
    "SettingDifference",
    "listing",
    "load",
    "recipe_digest",
    "resolve",
    "resolve_experiment",
    "settings_in",
]
