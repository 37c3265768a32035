"""The first study: recipes, ingredients and axes on a simulated cluster of 64 + 16 devices (docs/study/first.md).

All members start from one model and draw the same prompts with the same random numbers, as far as what they change
allows; seeds change the order of prompts and the sampling alone.
"""

from experiments.additions import additions
from experiments.axes import batches, generations, length, mixtures
from experiments.leave_one_out import leave_one_out
from experiments.recipes import recipes
from scalelab.experiment import Experiment

scalerl = Experiment(
    fragments=(
        "model/dense_miniature",
        "recipe/scalerl",
        "tasks/math_code_study",
        "cluster/virtual_80",
        "scale/study",  # after the cluster, whose precision it changes
        "budget/study",
    ),
    description="ScaleRL, the point where all questions of the study meet.",
)


DECODING = {"Rates.step_seconds": 0.85, "Rates.sequence_seconds": 0.0985}
"""Pace of decoding in `cluster/virtual_80`."""


def _paced(name: str, factor: float, words: str) -> dict[str, Experiment]:
    rates = {rate: seconds * factor for rate, seconds in DECODING.items()}
    off_policy = leave_one_out(scalerl)["schedule"]
    return {
        name: scalerl.override(rates, f"ScaleRL where decoding is {words}."),
        f"{name}_off_policy": off_policy.override(rates, f"ScaleRL on PPO-off-policy-8 where decoding is {words}."),
    }


def _named(prefix: str, members: dict[str, Experiment]) -> dict[str, Experiment]:
    return {f"{prefix}_{name}": member for name, member in members.items()}


experiments = {
    **recipes(scalerl, prompts_to_drop_from=27),  # 80 : 48, as in the paper
    "magistral_16": recipes(scalerl, prompts_to_drop_from=16)["magistral"],
    **_named("without", leave_one_out(scalerl)),
    **_named("baseline_and", additions(scalerl)),
    **batches(scalerl, (8, 27, 32), generations=8),
    "length_72": length(scalerl, tokens=72, answer=34, window=10, prompt=80),
    "length_160": length(scalerl, tokens=160, answer=34, window=10, prompt=80),
    **generations(scalerl, 128, (4, 16, 32)),
    "model_moe": scalerl.with_fragments("model/scout_miniature", description="A mixture of 16 experts, as active."),
    **mixtures(scalerl, {"math_heavy": (0.75, 0.25), "code_heavy": (0.25, 0.75)}),
    **{
        f"pipeline_{k}": scalerl.override({"PipelineRL.k": k}, f"Rollouts at most {k} steps old.")
        for k in (0, 1, 4, 16)
    },
    "lr_half": scalerl.override({"OptimizerConfig.lr": 5e-5}, "ScaleRL with half the learning rate."),
    **_paced("fast", 0.5, "twice as fast"),
    **_paced("slow", 2.0, "half as fast"),
    "corner": scalerl.override(
        {"Recipe.prompts_per_step": 24, "Recipe.generations_per_prompt": 16},
        "24 prompts of 16 completions: a place on the axes that tests the law of the others.",
    ),
}
