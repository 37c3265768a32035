"""Print the plan's model of time beside figures that others measured and published.

    .venv/bin/python tools/bench/published.py

Each row is a published run, planned with `scalelab.plan` on the same devices, shapes and lengths. Sources:

- RL: NeMo RL 0.4, performance summary, GRPO on OpenMathInstruct-2, bf16, on policy, engines and trainer on the
  same H100 (github.com/NVIDIA-NeMo/RL, docs/about/performance-summary.md, commit 06beed9).
- Training: Megatron Bridge, performance summary (github.com/NVIDIA-NeMo/Megatron-Bridge,
  docs/performance-summary-archive.md, commit 0a25f91).
- Decoding: vLLM benchmarks of Lambda (github.com/LambdaLabsML/vllm-benchmark, benchmark_v0.md, commit 0e8fc5d) and of
  J. Musgrave (johnmusgrave.com/p/vllm-throughput-latency-sweep-on).

- verl: its own `perf/mfu/actor`, as a user reports it (github.com/verl-project/verl, issue 965, 2025-04-13). verl
  publishes seconds of a step (docs/advance/fully_async.md), and not the lengths of its completions, without which no
  step can be planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scalelab.experiment import load, resolve_experiment
from scalelab.hardware import Device, device
from scalelab.plan.lengths import Moments
from scalelab.plan.placement import placement
from scalelab.plan.planner import plan_of
from scalelab.plan.speed import Assumptions, decoding, training_seconds
from scalelab.run.config import Run

WITHIN = 2.0
"""Largest ratio, up or down, that a row without an explanation may have."""

A100_40 = replace(device("a100"), bandwidth=1555)
"""The A100 of 40 GB, whose memory is slower."""


@dataclass(frozen=True)
class Published:
    """A published figure and the plan's.

    Attributes:
        what: model, devices and setting.
        unit: of both figures.
        measured: as published.
        planned: computes the plan's figure.
        note: why they differ; empty only for those within `WITHIN` that count the same things.
    """

    what: str
    unit: str
    measured: float
    planned: Callable[[], float]
    note: str = ""


QWEN3_32B = {
    "Qwen3.hidden_size": 5120,
    "Qwen3.num_hidden_layers": 64,
    "Qwen3.num_attention_heads": 64,
    "Qwen3.intermediate_size": 25600,
    "Qwen3.tie_word_embeddings": False,
}
"""Settings that make Qwen3-32B of Qwen3-8B (huggingface.co/Qwen/Qwen3-32B, config.json)."""

QWEN3_235B = {
    "Qwen3Moe.hidden_size": 4096,
    "Qwen3Moe.num_hidden_layers": 96,
    "Qwen3Moe.num_attention_heads": 64,
    "Qwen3Moe.moe_intermediate_size": 1536,
}
"""Settings that make Qwen3-235B-A22B of Qwen3-30B-A3B (huggingface.co/Qwen/Qwen3-235B-A22B, config.json)."""
FP8 = "FP8 there, bf16 here: half of its peak"


def rl_step(
    experiment: str,
    tokens: float,
    layout: Mapping[str, int],
    gpus: int,
    engine: int,
    shape: Mapping[str, object] | None = None,
) -> float:
    """Seconds of an on-policy step of 2,048 completions, and of their log-probabilities before it.

    Args:
        experiment: whose model it is.
        tokens: mean length with the prompt.
        layout: of the trainer.
        gpus: devices, all of which generate, then train.
        engine: devices of an engine.
        shape: settings of another model.
    """
    prompt, most = 160, 3936
    settings = {
        "Run.schedule": "@Synchronous()",
        "Cluster.trainers": gpus,
        "Cluster.generators": gpus // engine,
        "Recipe.prompts_per_step": 64,
        "Recipe.generations_per_prompt": 32,
        "Recipe.max_tokens": most,
        "GeneratorConfig.max_model_len": 4096,
        "GeneratorConfig.max_sequences": 256,
        "GeneratorConfig.tensor_parallel": engine,
        "TrainerConfig.recompute": "'none'",
        "ForcedInterruption.earliest": 3000,
        "ForcedInterruption.latest": 3200,
        **{f"Layout.{axis}": size for axis, size in layout.items()},
        **(shape or {}),
    }
    run = run_of(experiment, settings)
    assumed = Assumptions(prompt=prompt, median=_median(tokens - prompt, most))
    seconds = plan_of(run, placement(run), device("h100"), assumed).seconds
    return seconds["step"] + seconds["train"] / 3  # a forward pass more, of a forward and a backward one


def _median(mean: float, most: int) -> float:
    """Median by the longest of log-normal lengths of this mean, cuts left aside."""
    return float(mean / most / 2.718281828 ** (Assumptions.sigma**2 / 2))


def training_rate(
    experiment: str,
    length: int,
    gpus: int,
    layout: Mapping[str, int],
    hardware: Device | None = None,
    sequences: int = 512,
    shape: Mapping[str, object] | None = None,
) -> float:
    """Tokens a second and device, of sequences of one length.

    Args:
        experiment: whose model it is.
        length: of each sequence, in tokens.
        gpus: devices that train.
        layout: of the trainer.
        hardware: the devices; None for H100.
        sequences: of a step.
        shape: settings of another model.
    """
    axes = {f"Layout.{axis}": n for axis, n in {"tensor": 1, **layout}.items()}
    ranks = {"Cluster.trainers": gpus, "SFT.trainers": gpus}
    run = run_of(experiment, {"TrainerConfig.recompute": "'none'", **ranks, **axes, **(shape or {})})
    assumed, whole = Assumptions(prompt=0), Moments(length, length**2, length)
    hf_config, setup = run.model.to_hf(), replace(run.trainer_setup, fp32_head=False)
    gpu = hardware or device("h100")
    return sequences * length / gpus / training_seconds(hf_config, setup, gpus, sequences, whole, gpu, assumed)


def decoding_rate(hardware: Device, sequences: int, prompt: int, tokens: int) -> float:
    """Tokens a second of one engine on one device, with the 8B model in bf16."""
    run = run_of("h100/scalerl_8b", {"GeneratorConfig.max_sequences": sequences})
    whole = Moments(tokens, tokens**2, tokens)
    engine = decoding(run.model.to_hf(), run.generator_setup, sequences, whole, hardware, Assumptions(prompt=prompt))
    return engine.tokens_per_second


def run_of(name: str, settings: dict[str, object]) -> Run:
    """Build an experiment with some settings of its own."""
    ((name, member),) = load(name).items()
    return resolve_experiment(name, member, [f"{field}={value}" for field, value in settings.items()]).run


def rows() -> tuple[Published, ...]:
    """All published figures."""
    h100 = device("h100")
    return (
        Published(
            "RL of Llama-3.1-8B, 16 H100, 1,060 tokens",
            "s a step",
            97.7,
            lambda: rl_step("h100/scalerl_8b", 1060, {"tensor": 1, "pipeline": 2}, 16, 1),
        ),
        Published(
            "RL of Qwen3-30B-A3B, 32 H100, 3,154 tokens",
            "s a step",
            225.0,
            lambda: rl_step("qwen/qwen3_30b_a3b", 3154, {"tensor": 2, "expert": 8}, 32, 4),
            "an engine's experts are 192 wide there, at which vLLM is far from the memory's bandwidth; refit counts",
        ),
        Published(
            "RL of Qwen3-32B, 32 H100, 3,206 tokens",
            "s a step",
            393.0,
            lambda: rl_step("qwen/qwen3_8b", 3206, {"tensor": 4, "pipeline": 4}, 32, 4, QWEN3_32B),
        ),
        Published(
            "training of Llama-3-8B, 8 H100, 8,192 tokens, FP8",
            "tokens/s a GPU",
            14451,
            lambda: training_rate("h100/scalerl_8b", 8192, 8, {"tensor": 1}),
            FP8,
        ),
        Published(
            "training of Qwen3-30B-A3B, 16 H100, 4,096 tokens, FP8",
            "tokens/s a GPU",
            5113,
            lambda: training_rate("qwen/qwen3_30b_a3b", 4096, 16, {"tensor": 1, "pipeline": 2, "expert": 8}),
            f"{FP8}; with experts so narrow Megatron is slower than the plan",
        ),
        Published(
            "training of Qwen3-235B-A22B, 256 GB200, 4,096 tokens, bf16",
            "tokens/s a GPU",
            4916,
            lambda: training_rate(
                "qwen/qwen3_30b_a3b", 4096, 256, {"pipeline": 8, "expert": 32}, device("gb200"), 8192, QWEN3_235B
            ),
            "96 layers here in place of 94, which eight stages cannot share evenly",
        ),
        Published(
            "verl's update of the actor, H100, a user's",
            "share of the peak",
            0.33,
            lambda: Assumptions.mfu,
        ),
        Published(
            "decoding of Llama-3.1-8B, A100 of 40 GB, 1 sequence",
            "tokens/s",
            75,
            lambda: decoding_rate(A100_40, 1, 1024, 128),
        ),
        Published(
            "decoding of Mistral-7B, H100, about 89 sequences, vLLM 0.5.4",
            "tokens/s",
            3281,
            lambda: decoding_rate(h100, 89, 128, 256),
        ),
    )


def main() -> None:
    """Print the table."""
    print("| what | published | planned | planned / published | why |")
    print("|---|---|---|---|---|")
    for row in rows():
        planned = row.planned()
        ratio = f"{planned / row.measured:.2f}"
        print(f"| {row.what}, {row.unit} | {row.measured:,g} | {planned:,.4g} | {ratio} | {row.note} |")


if __name__ == "__main__":
    main()
