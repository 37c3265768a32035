"""The 17Bx16 mixture of experts on the smallest cluster that holds it."""

from experiments.scalerl_17bx16 import experiment as scout

experiments = {
    # With 16 samples its engines have the base model for 5 hours before the first step.
    "scalerl_17bx16_least": scout.with_fragments(
        "cluster/gpus_24_h200_scout", description="The 17Bx16 mixture of experts on three nodes of 8 H200."
    ).override({"HeldOut.samples": 4}),
}
