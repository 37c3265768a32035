"""Three schedules with real learning on a simulated cluster of 64 + 16 devices: what each gains."""

from experiments.quickstart import experiment as scalerl

_base = scalerl.with_fragments("cluster/virtual_80")

experiments = {
    "pipeline_8": _base.override({"PipelineRL.k": 8}, description="Generators stream, weights change in flight."),
    "ppo_off_policy_8": _base.with_fragments(
        "schedule/ppo_off_policy_8", description="Rounds of eight steps with one policy."
    ),
    "synchronous": _base.with_fragments("schedule/synchronous", description="Each side waits for the other."),
}
