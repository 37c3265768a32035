"""ScaleRL on grade-school math with SmolLM2-135M-Instruct, a real pretrained model, in a few steps on two cores.

GSM8K where `$SCALELAB_DATA` names a folder that holds it as `gsm8k`; else problems of the same kind from reasoning-gym.
"""

import os

from scalelab.experiment import Experiment

data = os.environ.get("SCALELAB_DATA")
experiment = Experiment(
    fragments=(
        "model/smollm2_135m",
        "recipe/scalerl",
        "tasks/gsm8k_chat" if data else "tasks/gsm_symbolic_chat",
        "cluster/laptop",
        "scale/smollm2_trial",
    ),
).override({"MathDataset.folder": data} if data else {})
