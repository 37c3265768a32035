"""ScaleRL on math and code with a miniature of Llama-4 Scout: the whole lab in three minutes on two cores."""

from scalelab.experiment import Experiment

experiment = Experiment(
    fragments=(
        "model/scout_miniature",
        "recipe/scalerl",
        "tasks/math_code_miniature",
        "scale/miniature",
        "cluster/laptop",
        "budget/quickstart",
    ),
)
