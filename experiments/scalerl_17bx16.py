"""ScaleRL on math with the paper's 17Bx16 mixture of experts, 50k GPU-hours."""

from experiments.scalerl_8b import experiment as scalerl_8b

experiment = scalerl_8b.with_fragments(
    "model/scout_17bx16", "cluster/gpus_80_scout", "budget/scout_50k", "evaluation/aime_24"
)
