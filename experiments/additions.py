"""The paper's baseline with one ingredient of ScaleRL at a time put in: what each gives alone (ScaleRL §3)."""

from experiments.scalerl_8b import experiment as scalerl_8b
from scalelab.experiment import Experiment
from scalelab.recipe.losses import CISPO
from scalelab.schedule.schedule import PipelineRL


def additions(scalerl: Experiment) -> dict[str, Experiment]:
    """The baseline at the scale of a ScaleRL experiment, and seven variants with one ingredient of ScaleRL each.

    The eighth ingredient, interruptions, is the baseline's own.
    """
    baseline = scalerl.with_fragments("recipe/baseline", description="The paper's baseline, ScaleRL §3.")
    put_in = baseline.override
    return {
        "baseline": baseline,
        "loss": put_in({"Recipe.loss": CISPO}, "The baseline with CISPO in place of DAPO's asymmetric clip."),
        "aggregation": put_in({"Recipe.aggregation": "prompt"}, "The baseline with the prompt average of the loss."),
        "advantage_norm": put_in({"Recipe.advantage_norm": "batch"}, "The baseline with advantages normed by batch."),
        "schedule": put_in(
            {"Run.schedule": PipelineRL}, "The baseline with PipelineRL-8 in place of PPO-off-policy-8."
        ),
        "fp32_head": put_in({"Recipe.fp32_head": "both"}, "The baseline with the LM head in fp32 on both sides."),
        "zero_variance": put_in({"Recipe.zero_variance": "drop"}, "The baseline with zero-variance prompts dropped."),
        "curriculum": put_in({"Recipe.retire_at": 0.9}, "The baseline with prompts retired once they are learnt."),
    }


experiments = additions(scalerl_8b)
