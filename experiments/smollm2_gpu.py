"""SmolLM2-135M-Instruct on GSM8K at length, on two GPUs of one machine: 1,000 steps of 48 prompts x 16 completions."""

from experiments.smollm2 import data
from experiments.smollm2 import experiment as trial

experiment = trial.with_fragments("tasks/gsm8k_chat", "cluster/gpus_2", "scale/smollm2").override(
    {"MathDataset.folder": data}
)
