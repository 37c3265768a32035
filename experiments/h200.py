"""The 17Bx16 mixture of experts on the smallest cluster that holds it."""

from experiments.scalerl_17bx16 import experiment as scout

experiments = {
    # With 16 samples one of its two engines would be without new weights for 10 hours.
    "scalerl_17bx16_least": scout.with_fragments(
        "cluster/gpus_24_h200_scout", description="The 17Bx16 mixture of experts on three nodes of 8 H200."
    ).override({"HeldOut.samples": 4}),
}
