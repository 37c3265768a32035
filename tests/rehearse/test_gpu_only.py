"""Everything that the product does only on a GPU stands in one list, with the test that runs it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.gpu_only import ROOT, gpu_only
from tests.rehearse.findings import FINDINGS

SIMULATED = "rehearse/test_environment.py::test_a_mixture_lives_on_a_simulated_gpu"
NODE = "rehearse/test_cluster.py::test_a_node_starts_beside_another_ray_and_leaves_no_process_file_or_token"
BROADCAST = (
    "transfer/test_broadcast.py::test_broadcast_weights_equal_the_trainers_and_a_lost_engine_costs_one_broadcast"
)
TWIN = "transfer/test_twin.py::test_new_weights_go_into_the_tensors_that_graphs_were_captured_with"
OUTPUTS = "rollout/test_output_contract.py::test_outputs_of_the_runner_for_gpus_have_the_form_that_engines_read"
RUNNER = "rollout/test_interruption.py::test_vllm_takes_the_processor_of_either_model_runner"
REFUSED = "moe/test_device.py::test_a_gpu_that_is_not_there_is_refused_and_not_replaced_by_cores"
CHOSEN = "moe/test_kernels.py::test_a_gpu_with_the_packages_gets_them_all"
WRONG_PACKAGES = "commands/test_cli.py::test_a_run_for_cpus_with_the_gpu_packages_is_refused_before_it_starts"
ASKED = "rollout/test_gpu_sampler.py::test_tokens_are_drawn_at_the_temperature_that_is_asked_for"
RANDOM = "rehearse/test_simulated_calls.py::test_a_gpus_random_state_is_kept_on_the_host_and_comes_back"
THREAD = "transfer/test_gpu_calls.py::test_a_thread_that_loads_first_goes_to_its_workers_device"

LIST: dict[str, tuple[str, str]] = {
    # the loop and Ray
    "scalelab/cluster/actors.py::actor_class": ("== gpu", NODE),
    "scalelab/cluster/placement.py::Reservation.__init__": ("== gpu", NODE),
    "scalelab/cluster/world.py::ClusterRun.__init__": (
        "== files",
        "run/test_loop.py::test_a_whole_run_takes_its_weights_by_broadcast",
    ),
    "scalelab/session/worlds.py::run_on_cluster": (
        "== gpu",
        "start/test_public_traces.py::test_a_run_that_does_not_fit_is_refused_in_one_line_before_an_actor_starts",
    ),
    "scalelab/session/only_sft.py::_tuner": (
        "== cpu, == gpu",
        "transfer/test_publication.py::test_a_fine_tuning_asks_the_gpus_drivers_before_an_actor_starts",
    ),
    "scalelab/session/evaluate_model.py::engine_config": (
        "torch.cuda.is_available",
        "session/test_evaluate_model.py::test_the_cache_has_room_for_every_sequence_and_one_more",
    ),
    "scalelab/sweep/sweep.py::cluster_devices": (
        "== gpu",
        "transfer/test_publication.py::test_a_sweep_counts_the_devices_that_its_runs_take",
    ),
    "scalelab/gpu_driver.py::smallest_memory": (
        "import pynvml",
        "cluster/test_gpu_driver.py::test_the_smallest_gpu_counts_and_a_driver_that_cannot_be_asked_does_not",
    ),
    "scalelab/cli.py::_missing": ("== cpu", "commands/test_cli.py::test_what_an_extra_brings_is_named_by_one_line"),
    "scalelab/hardware.py::Device.gpu": (
        "== cpu",
        "plan/test_check.py::test_devices_are_known_by_the_names_that_others_have_for_them",
    ),
    "scalelab/doctor.py::demand_engines": ("== cpu", WRONG_PACKAGES),
    "scalelab/doctor.py::_vllm_for_gpus": ("== cpu", WRONG_PACKAGES),
    "scalelab/machine.py::problems": ("== cpu", "packaging/test_install.py::test_arm_and_gpu_machines_need_no_avx2"),
    "scalelab/machine.py::oldest_glibc": (
        "== gpu",
        "packaging/test_install.py::test_gpus_beside_arm_take_a_newer_c_library",
    ),
    # engines
    "scalelab/rollout/engine.py": (
        ".is_cpu",
        "rollout/test_gpu_engine.py::test_latent_attention_is_taken_from_vllm_on_a_gpu_alone",
    ),
    "scalelab/rollout/engine.py::Engine.__init__": (".is_cpu", OUTPUTS),
    "scalelab/rollout/engine.py::Engine.add": (".is_cpu", ASKED),
    "scalelab/rollout/engine.py::engine_config": (
        ".is_cpu",
        "rollout/test_gpu_engine.py::test_settings_for_a_cpu_alone_are_left_out_on_a_gpu",
    ),
    "scalelab/rollout/engine.py::vllm_records": (".is_cpu", OUTPUTS),
    "scalelab/rollout/engine.py::_check": (
        ".is_cpu, == gpu",
        "rollout/test_gpu_engine.py::test_what_a_cpu_alone_refuses_is_taken_on_a_gpu",
    ),
    "scalelab/rollout/interruption.py": (
        "import vllm.v1.worker.gpu.sample.logits_processor.LogitsContext, "
        "import vllm.v1.worker.gpu.sample.logits_processor.LogitsProcRequestState, "
        "import vllm.v1.worker.gpu.sample.logits_processor.LogitsProcessor",
        RUNNER,
    ),
    "scalelab/rollout/limits.py::attention_problem": (
        "== cpu, == gpu",
        "rollout/test_split.py::test_heads_that_flash_attention_does_not_run_are_refused_on_a_gpu",
    ),
    "scalelab/rollout/limits.py::temperature_problem": (
        "== gpu",
        "rollout/test_gpu_engine.py::"
        "test_the_temperatures_that_a_run_may_have_on_a_gpu_are_those_that_vllm_takes_as_they_are",
    ),
    # weights
    "scalelab/transfer/broadcast.py": (
        "import vllm.distributed.weight_transfer.nccl_engine.NCCLTrainerInitInfo, "
        "import vllm.distributed.weight_transfer.nccl_engine.NCCLTrainerWeightTransferEngine",
        BROADCAST,
    ),
    "scalelab/transfer/receiver.py::Receiver.__init__": ("nccl", BROADCAST),
    "scalelab/transfer/engine_side.py::_Job._do": (".is_cpu, torch.accelerator.set_device_index", THREAD),
    "scalelab/transfer/engine_side.py::ShardTransfer.update_weights": (
        ".is_cpu, torch.accelerator.synchronize",
        "transfer/test_gpu_calls.py::test_an_update_ends_once_the_copies_are_on_the_device",
    ),
    "scalelab/transfer/twin.py::Twin.end": (".is_cpu", TWIN),
    "scalelab/transfer/twin.py::Twin.exchange": (".is_cpu", TWIN),
    "scalelab/transfer/twin.py::_room": (".is_cpu, .pin_memory", TWIN),
    "scalelab/transfer/twin.py::_process": (".is_cpu", TWIN),
    # the trainer
    "moe/ranks/parallel.py::check_device": ("== cpu, == gpu, torch.cuda.is_available", REFUSED),
    "moe/ranks/parallel.py::_why_no_cuda": (
        ".cuda, torch.cuda.init",
        "moe/test_device.py::test_a_cuda_that_does_not_start_is_refused_with_its_reason",
    ),
    "moe/ranks/parallel.py::join": (
        "nccl, torch.cuda.device_count, torch.cuda.is_available, torch.cuda.set_device",
        "rehearse/test_simulated_calls.py::test_ranks_meet_over_nccl_each_on_its_own_device",
    ),
    "moe/ranks/parallel.py::most_memory": (
        "== cuda, torch.cuda.max_memory_allocated",
        "moe/test_device.py::test_the_most_memory_of_a_rank_is_its_gpus_on_a_gpu_and_its_processs_on_a_cpu",
    ),
    "moe/train/trainer.py::Trainer._build": (
        "torch.cuda.is_available",
        "moe/test_device.py::test_products_in_bfloat16_are_replaced_on_a_cpu_alone",
    ),
    "moe/optimizer.py::Optimizer.__init__": (".is_cuda", SIMULATED),
    "moe/checkpoint/distributed.py::_copy_to_host": (
        "== cpu",
        "moe/test_device.py::test_a_checkpoint_copies_what_is_on_a_gpu_to_the_host",
    ),
    "moe/checkpoint/distributed.py::_random_state": ("torch.cuda.get_rng_state, torch.cuda.is_available", RANDOM),
    "moe/checkpoint/distributed.py::_set_random_state": ("torch.cuda.is_available, torch.cuda.set_rng_state", RANDOM),
    # the model
    "moe/model/attention.py::_attend": (
        "== cpu",
        "moe/test_device.py::test_attention_on_a_gpu_is_computed_in_the_models_own_type",
    ),
    "moe/model/gpt.py": (
        "import megatron.core.extensions.transformer_engine.TEColumnParallelLinear, "
        "import megatron.core.extensions.transformer_engine.TENorm, "
        "import megatron.core.models.gpt.gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec",
        "rehearse/test_environment.py::test_transformer_engines_layers_compute_what_the_local_ones_do",
    ),
    "moe/model/gpt.py::megatron_config": ("torch.cuda.is_available", SIMULATED),
    "moe/model/layers.py::parameter_device": ("torch.cuda.current_device", SIMULATED),
    "moe/model/head.py::product": (
        "== cuda",
        "moe/test_head.py::test_only_a_gpu_widens_bf16_products_and_only_for_the_fp32_head",
    ),
    "moe/model/kernels.py::this_host": (
        "torch.cuda.get_device_capability, torch.cuda.get_device_name, torch.cuda.is_available",
        "rehearse/test_simulated_calls.py::test_a_host_with_a_gpu_is_seen_with_its_packages_and_gets_their_kernels",
    ),
    "moe/model/kernels.py::choose": (".cuda", CHOSEN),
    "moe/model/kernels.py::_layers": (".cuda", CHOSEN),
    "moe/model/kernels.py::_dispatcher": (".cuda", CHOSEN),
    "moe/model/kernels.py::_attention": (".cuda", CHOSEN),
    "moe/model/kernels.py::_fusions": (".cuda", CHOSEN),
}
"""Function, or file for what it does when it is imported → its marks of a GPU, and the test below `tests/` that runs
it: with a simulated device, vLLM's platform or kernels for CUDA without one, a stand-in for NCCL, counted devices of
Ray, or a device by name. No function is left without one. That each fails without its place was tried by hand, by 68
changes (2026-11-29); here only their names are looked up."""


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def missing_tests(names: list[str]) -> list[str]:
    """Find the names, `file.py::test` below `tests/`, of tests that are not there."""
    lost = []
    for name in names:
        file, _, test = name.partition("::")
        path = ROOT / "tests" / file
        if not path.is_file() or test not in functions(path):
            lost.append(name)
    return lost


def test_what_only_a_gpu_does_is_listed_and_nothing_else() -> None:
    found = {place: ", ".join(sorted(marks)) for place, marks in gpu_only().items()}
    assert found == {place: marks for place, (marks, _) in LIST.items()}, "tell in LIST what runs it"


def test_a_test_is_named_for_everything_that_only_a_gpu_does() -> None:
    assert missing_tests([by for _, by in LIST.values()]) == []
    assert missing_tests(["rehearse/test_gpu_only.py::test_of_nobody"]) == ["rehearse/test_gpu_only.py::test_of_nobody"]


@pytest.mark.parametrize(
    ("source", "mark"),
    [
        ("def f(x):\n    torch.cuda.empty_cache()", "torch.cuda.empty_cache"),
        ("def f(x):\n    if x.is_cuda:\n        pass", ".is_cuda"),
        ("def f(x):\n    if x.device.type == 'cuda':\n        pass", "== cuda"),
        ("def f(x):\n    if x.device.type != 'cpu':\n        pass", "== cpu"),
        ("def f(x):\n    if x.device.type in ('cuda', 'xpu'):\n        pass", "== cuda"),
        ("def f(x):\n    torch.accelerator.synchronize()", "torch.accelerator.synchronize"),
        ("def f(x):\n    group('nccl')", "nccl"),
        ("def f(x):\n    from vllm.distributed.device_communicators import pynccl", "import vllm.distributed."),
        ("def f(x):\n    import flashinfer", "import flashinfer"),
    ],
)
def test_a_new_call_that_only_a_gpu_makes_is_found(source: str, mark: str, tmp_path: Path) -> None:
    file = tmp_path / "moe/train/new.py"
    file.parent.mkdir(parents=True)
    file.write_text(source + "\n")
    ((place, marks),) = gpu_only(tmp_path).items()
    assert place == "moe/train/new.py::f"
    assert any(one.startswith(mark) for one in marks)


def test_every_finding_at_full_size_has_a_test_that_notices_it() -> None:
    numbers = {re.sub(r"(?<=\d)[a-d]$", "", name) for name in FINDINGS}
    assert numbers == {*(f"C{n}" for n in range(1, 6)), *(f"P{n}" for n in range(1, 11)), "Under-counted"}
    for said, tests in FINDINGS.values():
        assert said.endswith(".")
        assert tests
        assert missing_tests([*tests]) == [], said
