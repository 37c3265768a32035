"""SmolLM2-135M-Instruct on GSM8K at length, on one GPU that generates and trains at the same time."""

from experiments.smollm2_gpu import experiment as on_two

experiment = on_two.with_fragments("cluster/gpu_1")
