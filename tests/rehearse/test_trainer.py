"""Trainer ranks at full width live through build, load, step and export, and need what the plan says."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from moe.model.families import Model, routed_experts
from moe.sequences import TrainingSequence
from moe.settings import RECOMPUTE, KernelChoice, Layout
from moe.weights.links import shapes
from scalelab.experiment import resolve
from scalelab.hardware import device
from scalelab.plan.exchanges import exchanged_bytes
from scalelab.recipe.losses import GRPO
from scalelab.rehearse.result import RoleResult
from scalelab.rehearse.roles import Role, trainer_roles
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.rehearse.trainer import micro_batch, rehearse, rehearse_training, subject
from tests.helpers.rehearsals import LENGTH, MODELS, run_of

pytestmark = pytest.mark.slow

H100 = device("h100")
LAYOUTS = [
    ("llama", Layout(), 1, "none"),
    ("llama", Layout(tensor=2, context=2), 8, "selective"),
    ("llama", Layout(tensor=2, pipeline=2), 8, "full"),
    ("qwen2", Layout(tensor=4), 8, "none"),
    ("qwen2", Layout(context=4), 4, "full"),
    ("qwen2", Layout(tensor=2, pipeline=2), 8, "selective"),
    ("qwen3", Layout(tensor=4), 8, "none"),
    ("qwen3", Layout(context=4), 4, "full"),
    ("qwen3", Layout(tensor=2, pipeline=2), 8, "selective"),
    ("qwen3_moe", Layout(expert=8), 8, "none"),
    ("qwen3_moe", Layout(tensor=2, expert=4, expert_tensor=2), 8, "selective"),
    ("qwen3_moe", Layout(expert=4, context=2, pipeline=2), 16, "full"),
    ("glm4_moe", Layout(tensor=4, expert=8), 8, "none"),
    ("glm4_moe", Layout(tensor=2, expert=4, context=2), 8, "selective"),
    ("glm4_moe", Layout(expert=4, pipeline=2), 8, "full"),
    ("deepseek_v3", Layout(expert=8), 8, "none"),
    ("deepseek_v3", Layout(expert=4, context=2), 8, "selective"),
    ("deepseek_v3", Layout(expert=4, pipeline=2), 8, "full"),
    ("mixtral", Layout(tensor=2, expert=8), 8, "selective"),
    ("mixtral", Layout(expert=2, expert_tensor=2, pipeline=2), 8, "none"),
    ("mixtral", Layout(expert=4, context=2), 8, "full"),
    ("llama4", Layout(tensor=4, expert=16), 16, "selective"),
    ("llama4", Layout(tensor=2, expert=8, context=2, pipeline=2), 32, "full"),
    ("llama4", Layout(tensor=8, expert=8, pipeline=4), 32, "none"),
]

EXCHANGES = {
    "tensor": ("all-gather", "reduce-scatter"),
    "expert": ("all-to-all",),
    "expert-tensor": ("all-gather", "reduce-scatter"),
    "pipeline": ("send", "receive"),
}


def rehearsed(
    model: Model, layout: Layout, world: int, recompute: str, role: int = -1, micro_batches: int = 1
) -> RoleResult:
    run = run_of(model, layout, world, recompute)
    return rehearse(RehearsalSettings(run, H100, micro_batches), trainer_roles(layout, world)[role])


def test_every_family_is_rehearsed_with_every_cut_and_every_recomputation() -> None:
    for family, model in MODELS.items():
        mine = [(layout, recompute) for name, layout, _, recompute in LAYOUTS if name == family]
        assert {recompute for _, recompute in mine} == set(RECOMPUTE), family
        cuts = {"tensor", "pipeline", "context"} | ({"expert"} if routed_experts(model) else set())
        cuts -= {"tensor"} if family == "deepseek_v3" else set()  # its latent attention is not cut
        assert cuts == {cut for cut in cuts if any(getattr(layout, cut) > 1 for layout, _ in mine)}, family


FOR_A_NIGHT = ("qwen2", "qwen3", "mixtral", "glm4_moe")
"""Families whose parts are all in others, too."""


@pytest.mark.parametrize(
    ("family", "layout", "world", "recompute"),
    [pytest.param(*one, marks=[pytest.mark.nightly] * (one[0] in FOR_A_NIGHT)) for one in LAYOUTS],
    ids=str,
)
def test_every_family_lives_through_every_layout(family: str, layout: Layout, world: int, recompute: str) -> None:
    """The last rank of the last stage has every part that a rank can have but the embedding."""
    result = rehearsed(MODELS[family], layout, world, recompute)
    assert result.problems == []
    assert [phase.name for phase in result.phases] == ["build", "load", "step", "export"]
    for kind in ("weights", "gradients", "optimizer"):
        assert result.memory_gib[kind] == pytest.approx(result.plan_memory_gib[kind], rel=1e-2), kind
    planned = exchanged_bytes(
        MODELS[family].to_hf(), run_of(MODELS[family], layout, world, recompute).trainer_setup, -1
    )
    for group, ops in EXCHANGES.items():
        size = getattr(layout, group.replace("-", "_"))
        found = [e["bytes"] for e in result.collectives if e["group"] == f"{group} × {size}" and e["op"] in ops]
        tokens = LENGTH / layout.context
        assert sum(found) == pytest.approx(getattr(planned, group.replace("-", "_")) * tokens, rel=1e-2), group


def test_flops_before_the_last_stage_are_the_plans() -> None:
    """A stage without the output product computes what the plan counts, and the router's small products."""
    for family, layout, world, recompute in (
        ("llama", Layout(tensor=2, pipeline=2), 8, "full"),
        ("mixtral", Layout(expert=2, expert_tensor=2, pipeline=2), 8, "none"),
        ("llama4", Layout(tensor=4, expert=4, pipeline=2), 8, "selective"),
    ):
        result = rehearsed(MODELS[family], layout, world, recompute, role=0)
        assert result.problems == []
        assert result.flops == pytest.approx(result.plan_flops, rel=1e-3)


def test_memory_of_the_8b_at_full_depth_is_the_plans_within_5_percent() -> None:
    run = resolve("scalerl_8b").run
    role = trainer_roles(run.trainer_setup.layout, run.cluster.trainers)[0]
    result = rehearse(RehearsalSettings(run, device("gb200")), role)
    assert result.problems == []
    assert result.peak_gib == pytest.approx(result.plan_gib, rel=0.05)
    assert result.flops == pytest.approx(result.plan_flops, rel=0.05)
    assert result.longest_row == run.generator.max_model_len


def test_a_share_of_the_optimizer_without_vectors_takes_a_clipped_step() -> None:
    """The last of 32 data ranks holds a part of the embedding and nothing else."""
    last = Role("trainer rank 31", "trainer", 31, 1)
    assert rehearse(RehearsalSettings(run_of(MODELS["llama"], Layout(), 32), H100), last).problems == []


def test_bytes_between_ranks_are_those_of_the_tensors_that_cross() -> None:
    """Data ranks exchange the gradients and the weights; experts' ranks every routed token there and back, twice."""
    layout, micro_batches = Layout(expert=4), 3
    model = replace(MODELS["qwen3_moe"], num_experts=8)
    result = rehearsed(model, layout, 8, "none", micro_batches=micro_batches)
    found = {(e["group"], e["op"]): e for e in result.collectives}
    gib = 2**30
    planned = result.plan_memory_gib
    shared = found["data × 8", "reduce-scatter"]["bytes"] + found["expert-data × 2", "reduce-scatter"]["bytes"]
    assert shared == pytest.approx(planned["gradients"] * gib, rel=1e-3)
    gathered = found["data × 8", "all-gather"]["bytes"] + found["expert-data × 2", "all-gather"]["bytes"]
    # each of Megatron's two optimisers, of the experts and of the rest, gathers all weights
    assert gathered == pytest.approx(2 * planned["weights"] * gib, rel=1e-3)
    routed = LENGTH * model.num_experts_per_tok
    row = 2 * model.hidden_size * 2 + 4  # a token out and back in bf16, and its weight in fp32
    every = found["expert × 4", "all-to-all"]
    assert every["bytes"] == micro_batches * model.num_hidden_layers * 2 * routed * row


def test_a_broadcast_gathers_every_expert_once_and_files_gather_none() -> None:
    layout = Layout(tensor=2, expert=4)
    run = run_of(MODELS["qwen3_moe"], layout, 8)
    ways: tuple[Literal["files", "nccl"], ...] = ("nccl", "files")
    for publication in ways:
        run = replace(run, cluster=replace(run.cluster, publication=publication))
        result = rehearse(RehearsalSettings(run, H100), trainer_roles(layout, 8)[0])
        assert result.problems == []
        found = {(e["group"], e["op"]): e["bytes"] for e in result.publication}
        if publication == "files":
            assert found == {}
            continue
        sizes = {name: 2 * math.prod(shape) for name, shape in shapes(run.model.to_hf()).items()}
        experts = sum(size for name, size in sizes.items() if ".experts." in name)
        vocabulary = sum(sizes[f"{name}.weight"] for name in ("model.embed_tokens", "lm_head"))
        assert [found[group, "broadcast"] for group in ("expert × 4", "tensor × 2")] == [experts, vocabulary]
        uncut = sum(size for name, size in sizes.items() if "norm" in name or ".mlp.gate." in name)
        gathered = sum(sizes.values()) - experts - uncut - vocabulary
        assert found["tensor × 2", "all-gather"] == pytest.approx(gathered, rel=1e-3)


@pytest.mark.parametrize("publication", ["nccl", pytest.param("files", marks=pytest.mark.nightly)])
def test_biases_of_experts_come_out_with_the_weights_whatever_their_way(publication: Literal["files", "nccl"]) -> None:
    layout = Layout(tensor=2, pipeline=2, expert=2)
    run = run_of(replace(MODELS["llama4"], num_hidden_layers=2), layout, 4)
    run = replace(
        run,
        cluster=replace(run.cluster, publication=publication),
        trainer=replace(run.trainer, expert_bias=0.01),
    )
    for role in trainer_roles(layout, 4):
        result = rehearse(RehearsalSettings(run, H100), role)
        assert result.problems == []
        assert result.phases[-1].name == "export"


def test_what_needs_packages_for_gpus_is_rehearsed_without_them_and_said() -> None:
    run = run_of(MODELS["qwen3_moe"], Layout(expert=8), 8)
    run = replace(run, trainer=replace(run.trainer, kernels="transformer_engine"))
    result = rehearse(RehearsalSettings(run, H100), trainer_roles(Layout(expert=8), 8)[0])
    assert result.problems == []
    assert any(line.startswith("Transformer Engine's layers") for line in result.replaced)
    assert result.verdict == "in part"


def test_an_optimizer_on_the_host_takes_no_memory_of_the_device_and_is_not_called_rehearsed() -> None:
    on = run_of(MODELS["llama"], Layout(), 8)
    on = replace(on, trainer=replace(on.trainer, kernels="local"))
    off = replace(on, trainer=replace(on.trainer, optimizer=replace(on.trainer.optimizer, offload=True)))
    device, result = (rehearse(RehearsalSettings(run, H100), trainer_roles(Layout(), 8)[0]) for run in (on, off))
    assert result.problems == []
    assert result.verdict == "in part"
    assert [line.partition(",")[0] for line in result.replaced] == ["the optimiser on the host"]
    assert result.plan_memory_gib["optimizer"] == 0
    assert result.peak_gib == pytest.approx(device.peak_gib - device.memory_gib["optimizer"], rel=0.01)


@pytest.mark.parametrize(("kernels", "said"), [("auto", True), ("transformer_engine", True), ("local", False)])
def test_layers_that_are_not_rehearsed_are_named_wherever_a_gpu_would_take_them(
    kernels: KernelChoice, said: bool
) -> None:
    run = run_of(replace(MODELS["llama"], num_hidden_layers=1), Layout(), 1)
    run = replace(run, trainer=replace(run.trainer, kernels=kernels))
    result = rehearse(RehearsalSettings(run, H100), trainer_roles(Layout(), 1)[0])
    assert any("Transformer Engine's layers" in line for line in result.replaced) == said
    assert result.verdict == ("in part" if said else "ok*")


def test_a_first_policy_takes_its_weights_and_a_forward_pass() -> None:
    layout = Layout(tensor=2, pipeline=2)
    run = run_of(MODELS["llama"], layout, 8)
    run = replace(run, recipe=replace(run.recipe, loss=GRPO(beta=0.04)))
    for role in trainer_roles(layout, 8)[::2]:
        result = rehearse(RehearsalSettings(run, H100), role)
        assert result.problems == []
        assert result.memory_gib["reference"] == pytest.approx(result.plan_memory_gib["reference"], rel=1e-2)
        assert result.flops == pytest.approx(result.plan_flops, rel=0.01)


def test_router_replay_is_rehearsed_and_a_record_that_does_not_fit_breaks_it() -> None:
    run = run_of(MODELS["mixtral"], Layout(expert=8), 8)
    replayed = replace(run, recipe=replace(run.recipe, router_replay=True))
    role = trainer_roles(run.trainer.layout, 8)[0]
    plain, training = (subject(RehearsalSettings(one, H100)) for one in (run, replayed))
    assert plain != training, "they are not the same to a rehearsal"
    assert rehearse_training(training, role).problems == []
    whole = training.sequence(4, 0).routed_TLK
    assert whole is not None
    assert whole.shape == (4, 2, 2), "tokens, layers, experts per token"
    for layers, chosen in ((1, 2), (2, 3)):

        def sequence(tokens: int, number: int, shape: tuple[int, int] = (layers, chosen)) -> TrainingSequence:
            return replace(training.sequence(tokens, number), routed_TLK=np.zeros((tokens, *shape), np.int16))

        lacking = replace(training, sequence=sequence)
        (problem,) = rehearse_training(lacking, role).problems
        assert problem.startswith("step: "), problem


def test_busier_experts_take_more_memory() -> None:
    run = run_of(replace(MODELS["mixtral"], num_hidden_layers=1), Layout(expert=8), 8)
    role = trainer_roles(run.trainer.layout, 8)[0]
    even, busy = (rehearse(RehearsalSettings(run, H100, imbalance=share), role) for share in (1.0, 3.0))
    assert even.problems == busy.problems == []
    assert busy.memory_gib["activations"] > 1.2 * even.memory_gib["activations"]


def test_a_folder_of_another_model_is_found_out(tmp_path: Path) -> None:
    model = MODELS["llama"]
    small = {name: torch.zeros(1) for name in shapes(model.to_hf())}
    save_file(small, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.to_hf()))
    run = run_of(model, Layout(), 1)
    run = replace(run, sft=replace(run.sft, pretrained=str(tmp_path)))
    result = rehearse(RehearsalSettings(run, H100), trainer_roles(Layout(), 1)[0])
    assert [problem.split(":")[0] for problem in result.problems] == ["load"]
    assert "has shape (1,), but this model needs (128256, 4096)" in result.problems[0]
    assert [phase.ok for phase in result.phases] == [True, False]


@pytest.mark.parametrize(
    ("longest", "budget", "row"), [(16, 16, [16]), (16, 40, [16, 16, 8]), (64, 40, [64]), (1, 3, [1, 1, 1])]
)
def test_a_row_is_full_and_has_the_longest_sequences(longest: int, budget: int, row: list[int]) -> None:
    assert micro_batch(longest, budget) == row
