"""The models that the large experiments start from: instruct models, fine-tuned on public reasoning traces.

`scalelab sft sft/scalerl_8b --out models/llama_8b_sft` makes the folder that `h100/scalerl_8b` starts from
(docs/models.md). `scalelab run` with one of these fine-tunes first and then goes on with RL. The mixture of experts
differs in its model, cluster and folders alone.
"""

from experiments.h100 import experiments as h100

dense, scout = h100["scalerl_8b"], h100["scalerl_17bx16"]

experiments = {
    "scalerl_8b": dense.with_fragments("sft/openr1_math", description="Llama-3.1-8B-Instruct on OpenR1-Math.").override(
        {"SFT.pretrained": "models/Llama-3.1-8B-Instruct"}
    ),
    "scalerl_17bx16": scout.with_fragments(
        "sft/openr1_math", description="Llama-4-Scout-17B-16E-Instruct on OpenR1-Math."
    ).override({"SFT.pretrained": "models/Llama-4-Scout-17B-16E-Instruct"}),
}
