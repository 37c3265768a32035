"""The three schedules on a pretended cluster of 64 + 16 devices, with a miniature: what each gains with real learning."""

from scalelab.experiment import Experiment

_base = Experiment(
    fragments=(
        "model/scout_miniature",
        "recipe/scalerl",
        "tasks/math_code_miniature",
        "scale/miniature",
        "cluster/laptop",
        "budget/quickstart",
        "cluster/virtual_80",
    ),
).override("SFT.seed = 0")

experiments = {
    "pipeline_8": _base.override("PipelineRL.k = 8"),
    "ppo_off_policy_8": _base.override("Run.schedule = @PPOOffPolicy()", "PPOOffPolicy.k = 8"),
    "synchronous": _base.override("Run.schedule = @Synchronous()"),
}
