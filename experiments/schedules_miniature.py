"""Three schedules with real learning on a pretended cluster of 64 + 16 devices: what each gains."""

from experiments.quickstart import experiment as scalerl

_base = scalerl.with_fragments("cluster/virtual_80").override({"SFT.seed": 0})
_rounds = _base.override({"Run.schedule": "@PPOOffPolicy()", "PPOOffPolicy.k": 8})

experiments = {
    "pipeline_8": _base.override({"PipelineRL.k": 8}, description="Generators stream, weights change in flight."),
    "ppo_off_policy_8": _rounds.override({}, description="Rounds of eight steps with one policy."),
    "synchronous": _base.override({"Run.schedule": "@Synchronous()"}, description="Each side waits for the other."),
}
