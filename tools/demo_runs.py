"""Runs that come with the package, for `scalelab demo`: small enough to be recorded on two cores in half an hour."""

from experiments.quickstart import experiment as quickstart
from experiments.recipes import recipes

_small = quickstart.override(
    {
        "Recipe.prompts_per_step": 8,
        "OptimizerConfig.lr": 4e-4,
        "Budget.steps": 32,
        "Evaluation.every": 4,
        "Evaluation.prompts": 32,
        "Evaluation.samples": 2,
        "Run.checkpoint_every": 16,
    }
)
_recipes = recipes(_small, prompts_to_drop_from=7)

experiments = {
    "scalerl": _recipes["scalerl"],
    "magistral": _recipes["magistral"],
    "too_fast": _small.override(
        {"OptimizerConfig.lr": 8e-3, "OptimizerConfig.warmup_steps": 24},
        "ScaleRL with a learning rate that rises until the model forgets: a planted fall.",
    ),
}
