"""The two large models on H100: the paper's number of devices, the least that `scalelab plan` accepts, and 512."""

from experiments.scalerl_8b import experiment as dense
from experiments.scalerl_17bx16 import experiment as scout

experiments = {
    "scalerl_8b": dense.with_fragments("cluster/gpus_80_h100", description="The dense 8B on ten nodes of 8 H100."),
    "scalerl_8b_node": dense.with_fragments("cluster/gpus_8_h100", description="The dense 8B on one node of 8 H100."),
    "scalerl_8b_512": dense.with_fragments(
        "cluster/gpus_512_h100", description="The dense 8B on 64 nodes of 8 H100, with a batch of 2,048."
    ),
    "scalerl_17bx16": scout.with_fragments(
        "cluster/gpus_80_h100_scout", description="The 17Bx16 mixture of experts on ten nodes of 8 H100."
    ),
    # With 16 samples its only engine has the base model for 8 hours before the first step.
    "scalerl_17bx16_least": scout.with_fragments(
        "cluster/gpus_40_h100_scout", description="The 17Bx16 mixture of experts on five nodes of 8 H100, the least."
    ).override({"HeldOut.samples": 4}),
    "scalerl_17bx16_512": scout.with_fragments(
        "cluster/gpus_512_h100_scout",
        description="The 17Bx16 mixture of experts on 64 nodes of 8 H100, with a batch of 2,048.",
    ),
}
