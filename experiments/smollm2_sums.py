"""ScaleRL on short sums with SmolLM2-135M-Instruct: a real pretrained model learns on two cores."""

from scalelab.experiment import Experiment

experiment = Experiment(
    fragments=(
        "model/smollm2_135m",
        "recipe/scalerl",
        "tasks/sums_chat",
        "cluster/laptop",
        "scale/smollm2_sums",
    ),
)
