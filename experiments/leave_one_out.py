"""ScaleRL with one ingredient at a time put back to its baseline: what each is worth (ScaleRL §4)."""

from experiments.scalerl_8b import experiment as scalerl_8b
from scalelab.experiment import Experiment
from scalelab.recipe.length_control import LengthPenalty
from scalelab.recipe.losses import DAPO
from scalelab.schedule.schedule import PPOOffPolicy


def leave_one_out(scalerl: Experiment) -> dict[str, Experiment]:
    """The eight variants of an experiment with the ScaleRL recipe; they differ from it in one choice each."""
    without = scalerl.override
    return {
        "loss": without({"Recipe.loss": DAPO}, "ScaleRL with DAPO's asymmetric clip in place of CISPO."),
        "aggregation": without({"Recipe.aggregation": "sample"}, "ScaleRL with the sample average of the loss."),
        "advantage_norm": without({"Recipe.advantage_norm": "prompt"}, "ScaleRL with advantages normed by prompt."),
        "schedule": without({"Run.schedule": PPOOffPolicy}, "ScaleRL with PPO-off-policy-8 in place of PipelineRL-8."),
        "fp32_head": without({"Recipe.fp32_head": "none"}, "ScaleRL with the LM head in the model's own precision."),
        "zero_variance": without({"Recipe.zero_variance": "keep"}, "ScaleRL with zero-variance prompts in the loss."),
        "curriculum": without({"Recipe.retire_at": None}, "ScaleRL with prompts drawn uniformly, learnt ones too."),
        "length_control": without(
            {"Recipe.length_control": LengthPenalty}, "ScaleRL with a length penalty in place of interruptions."
        ),
    }


experiments = leave_one_out(scalerl_8b)
