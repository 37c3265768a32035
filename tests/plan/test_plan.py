"""Plans need neither GPU nor torch, say what does not fit and what does, and count as an independent count does."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe.model.architectures import architecture
from moe.model.size import kv_bytes_per_token, parameters
from moe.settings import Layout, OptimizerConfig, TrainerSetup
from moe.train.layout import check_layout, ranks_per_copy
from scalelab import cli
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.hardware import Hardware, device
from scalelab.plan.exchanges import exchanged_bytes
from scalelab.plan.lengths import LogNormal, fitting_prompt
from scalelab.plan.memory import export_bytes, head_bytes, trainer_memory
from scalelab.plan.placement import placement, resize
from scalelab.plan.planner import RunPlan, fastest, fine_tuning_seconds, moments_of, plan_of, propose
from scalelab.plan.sizes import held
from scalelab.plan.speed import Assumptions, attention_flops, decoding, host_step_seconds, training_flops
from scalelab.run.config import Run
from scalelab.schedule.schedule import PPOOffPolicy
from tests.helpers.real_models import DEEPSEEK_V3

ASSUMED = Assumptions()


@pytest.fixture(scope="module")
def dense() -> Run:
    return resolve("scalerl_8b").run


@pytest.fixture(scope="module")
def scout() -> Run:
    return resolve("scalerl_17bx16").run


def test_the_papers_runs_fit_on_its_80_gpus(dense: Run, scout: Run) -> None:
    for run in (dense, scout):
        plan = plan_of(run, placement(run), device("gb200"), ASSUMED)
        assert plan.problems == ()
        assert plan.placement.trainers + plan.placement.generators == 80


@pytest.mark.slow
def test_what_does_not_fit_is_refused_and_what_fits_is_proposed(scout: Run) -> None:
    h100 = device("h100")
    plan = plan_of(scout, placement(scout), h100, ASSUMED)
    assert any("a trainer rank does not fit: " in problem and "of 79 on h100" in problem for problem in plan.problems)
    assert propose(scout, Hardware(h100, 80), ASSUMED, trainers=16) is None
    found = propose(scout, Hardware(h100, 80), ASSUMED, trainers=32)
    assert found is not None
    assert found.problems == ()
    assert found.trainer.total <= h100.memory_gib
    assert found.placement.trainers + found.placement.generators <= 80
    check_layout(scout.model.to_hf(), found.placement.trainer.layout, found.placement.trainers)
    again = plan_of(scout, found.placement, h100, ASSUMED)
    assert again.problems == ()
    assert propose(scout, Hardware(h100, 8), ASSUMED) is None


def test_roles_keep_their_proportion_on_another_number_of_devices(dense: Run, scout: Run) -> None:
    assert (resize(dense, 160).trainers, resize(dense, 160).engines) == (32, 128)
    assert (resize(scout, 160).trainers, resize(scout, 40).trainers) == (32, 16)
    with pytest.raises(LabError, match="too few"):
        resize(scout, 5)


@pytest.mark.parametrize("name", ["scalerl_8b", "scalerl_17bx16", "qwen/qwen25_7b_node", "smollm2_one_gpu"])
def test_roles_are_as_near_to_their_proportion_as_whole_copies_and_engines_come(name: str) -> None:
    run = resolve(name).run
    own, copy, engine = placement(run), ranks_per_copy(run.trainer.layout), run.generator.tensor_parallel
    for gpus in range(1, 65):
        if (own.shared or gpus == 1) and gpus % copy == 0:
            place = resize(run, gpus)
            assert (place.trainers, place.engines, place.shared) == (gpus, gpus, True)
            continue
        wanted = gpus * own.trainers / (own.trainers + own.generators)
        trainers = min(range(copy, gpus + copy, copy), key=lambda ranks: abs(ranks - wanted))
        if gpus - trainers < engine:
            with pytest.raises(LabError, match=f"{gpus} devices are too few for {trainers} trainer ranks") as error:
                resize(run, gpus)
            least = int(re.findall(r"give (\d+) or more", str(error.value))[0])
            assert resize(run, least).engines == 1
            for fewer in range(gpus, least):
                with pytest.raises(LabError, match="too few"):
                    resize(run, fewer)
        else:
            place = resize(run, gpus)
            assert abs(place.trainers - wanted) == abs(trainers - wanted), "two may be as near"
            assert (place.trainers % copy, place.shared) == (0, own.shared)
            assert place.engines == (gpus - place.trainers) // engine


def test_a_step_on_cores_waits_for_no_driver() -> None:
    """Only engines that run elsewhere are driven; what one step takes here is less than a second."""
    run = resolve("quickstart", ["Recipe.prompts_per_step=2", "Recipe.generations_per_prompt=2"]).run
    seconds = plan_of(run, placement(run), device("cpu"), ASSUMED).seconds
    assert seconds["step"] == pytest.approx(max(seconds["train"], seconds["generate"], seconds["hold"]), rel=0.1)
    assert seconds["step"] < 0.9


def test_verifiers_keep_their_proportion_rounded_up_and_never_none(dense: Run, scout: Run) -> None:
    """16 on 80 devices."""
    assert [resize(dense, gpus).verifiers for gpus in (5, 40, 80, 81, 160, 1000)] == [1, 8, 16, 17, 32, 200]
    assert resize(scout, 160).settings()["Cluster.verifiers"] == 32
    given = resize(dense, 160).given_to(dense)
    assert given is not None
    assert given.cluster.verifiers == 32
    found = propose(scout, Hardware(device("h100"), 160), ASSUMED)
    assert found is not None
    assert found.placement.verifiers == 32


@pytest.mark.parametrize(("command", "more"), [("plan", ()), ("simulate", ("--no-search", "--hours", "0.3"))])
def test_gpus_rescales_verifiers_with_the_other_roles_and_says_so(
    command: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward of 2 s, of which twice the devices have twice as many under way."""
    task = "Run.tasks=(@ReasoningGym(),)", "Run.task_weights=None", "ReasoningGym.family='leg_counting'"
    costly = "ReasoningGym.seconds_per_reward=2.0", "ReasoningGym.workers=1"
    sets = [word for one in (*task, *costly) for word in ("--set", one)]
    asked = [command, "h100/scalerl_8b", "--gpus", "160", *more, *sets]
    assert cli.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verifiers"] == 32
    each = found["rates"]["host_seconds"] if command == "simulate" else found["reward_seconds_per_step"] / 768 / 32
    assert each == pytest.approx(2.0 / 32)
    assert cli.main(asked) == 0
    assert re.search(r"^verifiers +32\b", capsys.readouterr().out, re.MULTILINE)


def test_bytes_of_an_8b_on_one_rank_are_those_of_the_textbook() -> None:
    """18 bytes a parameter: bf16 weights, fp32 gradients, fp32 weights and moments (ZeRO, arXiv 1910.02054 §3.1)."""
    hf = resolve("scalerl_8b").run.model.to_hf()
    total = parameters(hf).total
    whole = held(hf, Layout(), 1, "bfloat16")
    assert whole.total == pytest.approx(18 * total, rel=1e-5)
    shared = held(hf, Layout(), 16, "bfloat16")
    assert (shared.weights, shared.gradients) == pytest.approx((2 * total, 4 * total), rel=1e-5)
    assert shared.optimizer == pytest.approx(12 * total / 16, rel=1e-4)


def test_an_optimizer_in_bf16_takes_half_and_one_on_the_host_nothing(scout: Run) -> None:
    """Moments of two bytes each and the missing half of an fp32 weight, in place of three fp32 numbers."""
    hf, layout = scout.model.to_hf(), scout.trainer.layout
    full = held(hf, layout, 16, "bfloat16")
    half, none = (
        held(hf, layout, 16, "bfloat16", settings=OptimizerConfig(**settings))
        for settings in ({"moments": "bfloat16"}, {"offload": True})
    )
    assert half.optimizer == pytest.approx(full.optimizer / 2, rel=1e-6)
    assert none.optimizer == 0
    assert half.weights + half.gradients == none.total == full.weights + full.gradients


def test_an_optimizer_on_the_host_takes_the_time_of_its_slower_half(scout: Run) -> None:
    """The 108B parameters on 32 ranks, each of which steps a 32nd; Megatron's padding is below a thousandth."""
    hf, layout = scout.model.to_hf(), Layout(expert=16, tensor=4)
    configs = [TrainerSetup(layout, OptimizerConfig(offload=offload), "bfloat16") for offload in (False, True)]
    on_gpu, on_host = (host_step_seconds(hf, config, 32, ASSUMED) for config in configs)
    assert on_gpu == 0
    share = parameters(hf).total / 32
    assert on_host == pytest.approx(share / 0.6e9, rel=0.02)
    slow = dataclasses.replace(ASSUMED, copying=1.0)
    assert host_step_seconds(hf, configs[1], 32, slow) == pytest.approx(8 * share / 1e9, rel=0.02)
    place = placement(scout)
    steps = []
    for config in configs:
        trainer = dataclasses.replace(place.trainer, optimizer=config.optimizer)
        steps.append(plan_of(scout, dataclasses.replace(place, trainer=trainer), device("gb200"), ASSUMED))
    assert steps[1].seconds["train"] > steps[0].seconds["train"] + 1


def test_a_fine_tuning_costs_at_most_its_longest_traces() -> None:
    """384 traces of 12,288 tokens: products at the assumed share of 16 H100s' peak, and exchanges between two ranks.

    A layer has 5 of attention and, of whose forward pass is computed again, 7 of its feed-forward; 3 are of embedding
    and head. Half of each leaves a rank.
    """
    run = resolve("sft/scalerl_8b").run
    flops = 384 * training_flops(run.model.to_hf(), run.trainer.recompute, 12288, 12288**2, split_head=True)
    hidden_states = 384 * 12288 / 8 * 4096 * 2
    exchanged = (32 * (5 + 7) + 3) * hidden_states / 2 / (450e9 * 0.7)
    expected = flops / (16 * 989e12 * 0.40) + exchanged
    assert fine_tuning_seconds(run, device("h100"), ASSUMED) == pytest.approx(expected)


def test_evaluations_by_hours_cost_what_as_many_by_steps_cost(dense: Run) -> None:
    def seconds(**evaluation: Any) -> dict[str, float]:
        run = dataclasses.replace(dense, evaluation=dataclasses.replace(dense.evaluation, **evaluation))
        return plan_of(run, placement(run), device("gb200"), ASSUMED).seconds

    hours = seconds(samples=1, prompts=2, every=10**9)["step"] * placement(dense).devices / 3600
    assert seconds(every_hours=100 * hours) == pytest.approx(seconds(every=100), rel=1e-6)
    assert seconds(every_hours=50 * hours)["generate"] > seconds(every=100)["generate"]


def test_an_export_counts_where_it_takes_more_than_a_step(scout: Run, dense: Run) -> None:
    """Two copies of Scout's largest tensor, 16 x 5120 x 16384 bf16 numbers, counted by hand."""
    assert export_bytes(scout.model.to_hf(), "bfloat16") == 2 * 16 * 5120 * 16384 * 2
    assert export_bytes(dense.model.to_hf(), "bfloat16") == 2 * 128256 * 4096 * 2
    full = dataclasses.replace(scout.trainer_setup, recompute="full", layout=Layout(tensor=4, pipeline=2, expert=16))
    memory = trainer_memory(scout.model.to_hf(), full, 32, 16384, gpu=True)
    assert memory.export > 0
    assert memory.activations + memory.logits + memory.export == pytest.approx(5.0)
    assert trainer_memory(dense.model.to_hf(), dense.trainer_setup, 16, 16384, gpu=True).export == 0


def test_training_flops_are_those_of_every_product(dense: Run, scout: Run) -> None:
    """Counted product by product, 2·m·n·k each, in place of 6·N."""
    for run in (dense, scout):
        hf = run.model.to_hf()
        arch = architecture(hf)
        fields, tokens = arch.fields, 1000
        hidden, head = fields["hidden_size"], fields["kv_channels"]
        qkv = head * (fields["num_attention_heads"] + 2 * fields["num_query_groups"])
        forward = 0
        for layer in arch.layers:
            forward += 2 * hidden * qkv + 2 * head * fields["num_attention_heads"] * hidden
            if layer.experts:
                inner = fields["moe_ffn_hidden_size"] + fields["moe_shared_expert_intermediate_size"]
                forward += 2 * hidden * fields["num_moe_experts"] + 3 * 2 * hidden * inner
            else:
                forward += 3 * 2 * hidden * fields["ffn_hidden_size"]
        vocabulary = 4 * 2 * hidden * hf["vocab_size"]
        attention = 3.5 * attention_flops(hf, tokens, tokens**2)
        expected = tokens * (3 * forward + vocabulary) + attention
        assert training_flops(hf, "none", tokens, tokens**2) == pytest.approx(expected, rel=1e-9)
        again = training_flops(hf, "full", tokens, tokens**2) - expected
        assert again == pytest.approx(tokens * forward + attention / 3.5, rel=1e-9)


def test_flops_of_a_step_are_those_of_what_is_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for dropped in ("0", "0.5", "1"):
        cli.main(["plan", "h100/scalerl_8b", "--dropped", dropped, "--json"])
        found.append(json.loads(capsys.readouterr().out)["flops_per_step"])
    assert found == pytest.approx([found[0], found[0] / 2, 0.0])
    run = resolve("h100/scalerl_8b").run
    length = moments_of(run, assumed := Assumptions())
    tokens, square = length.mean + assumed.prompt, length.square + 2 * assumed.prompt * length.mean + assumed.prompt**2
    each = training_flops(run.model.to_hf(), run.trainer.recompute, tokens, square, split_head=True)
    assert found[0] == pytest.approx(run.recipe.completions_per_step * each)


def test_a_set_that_has_too_few_problems_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "smollm2_sums", "--set", "Evaluation.prompts=10000"]
    assert cli.main(asked) == 1
    assert "does not run: task chain_sum has about" in capsys.readouterr().out
    assert cli.main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert any("held-out problems" in problem for problem in found["problems"])


def test_the_limit_that_ends_a_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for sets, limit in (((), "hours"), (("--set", "Budget.steps=1000"), "steps")):
        cli.main(["plan", "scalerl_8b_long", *sets])
        assert f"as Budget.{limit} ends it" in capsys.readouterr().out


def test_attention_counts_every_pair_that_is_not_masked(scout: Run) -> None:
    hf, tokens = scout.model.to_hf(), 20_000
    fields = architecture(hf).fields
    width = fields["num_attention_heads"] * fields["kv_channels"]
    chunk = hf["attention_chunk_size"]
    pairs = sum(
        4 * width * (np.arange(tokens) % c if (c := layer.attention.chunk) else np.arange(tokens)).sum()
        for layer in architecture(hf).layers
    )
    assert tokens > chunk
    assert pairs <= attention_flops(hf, tokens, tokens**2) <= 2 * pairs
    assert attention_flops(hf, 100, 100**2) == pytest.approx(48 * 2 * width * 100**2)


def test_decoding_reads_weights_and_caches_and_nothing_comes_for_free(dense: Run, scout: Run) -> None:
    gb200, length = device("gb200"), LogNormal(6000, 0.6, 14336).moments()
    one = decoding(dense.model.to_hf(), dense.generator_setup, 1, length, gb200, ASSUMED)
    weights = 2 * (parameters(dense.model.to_hf()).total - parameters(dense.model.to_hf()).embedding)
    assert one.seconds > weights / (8e12 * ASSUMED.bandwidth)
    many = decoding(dense.model.to_hf(), dense.generator_setup, 100, length, gb200, ASSUMED)
    assert one.tokens_per_second < many.tokens_per_second < 100 * one.tokens_per_second
    hf, setup = scout.model.to_hf(), scout.generator_setup
    experts = [decoding(hf, setup, n, length, gb200, ASSUMED).seconds for n in (1, 64)]
    assert experts[1] > 2 * experts[0]


def test_a_round_has_the_longest_completion_and_the_publication_once_for_its_steps(dense: Run) -> None:
    def plan(steps: int) -> RunPlan:
        run = dataclasses.replace(dense, schedule=PPOOffPolicy(k=steps))
        return plan_of(run, placement(run), device("gb200"), ASSUMED)

    one, eight = plan(1), plan(8)
    assert eight.started == 8 * one.started
    assert eight.seconds["hold"] == pytest.approx(one.seconds["hold"] / 8)
    rest = [each.seconds["step"] - max(each.seconds["generate"], each.seconds["hold"]) for each in (one, eight)]
    assert rest[0] - rest[1] == pytest.approx(7 / 8 * one.seconds["publish"], rel=0.02), "but for evaluations"


def test_a_token_takes_the_cache_that_is_published() -> None:
    """arXiv 2505.09343, Table 1: KB per token in BF16, of DeepSeek-V3, Qwen-2.5 72B and Llama-3.1 405B."""
    grouped = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    assert kv_bytes_per_token(DEEPSEEK_V3, "bfloat16") == kv_bytes_per_token(DEEPSEEK_V3, "bfloat16", 8) == 70_272
    assert kv_bytes_per_token({**grouped, "num_hidden_layers": 80}, "bfloat16") == 327_680
    llama = {"hidden_size": 16_384, "num_attention_heads": 128, "num_key_value_heads": 8, "num_hidden_layers": 126}
    assert kv_bytes_per_token(llama, "bfloat16") == 516_096
    assert [kv_bytes_per_token(llama, "float32", ranks) for ranks in (1, 4, 8, 16)] == [
        2 * 516_096 / cut for cut in (1, 4, 8, 8)
    ], "heads are shared out, and none is cut"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("in_fp32", [True, False])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_heads_memory_is_that_of_a_count_by_hand(dense: Run, dtype: str, in_fp32: bool, tensor: int) -> None:
    """A token has logits in fp32 and a gradient; of fp32 products in two bf16 numbers there are two, and sums twice."""
    config: Any = TrainerSetup(dtype=dtype, fp32_head=in_fp32, layout=Layout(tensor=tensor))  # type: ignore[arg-type]
    hf = dense.model.to_hf()
    words = hf["vocab_size"] / tensor
    tokens = min(config.head_chunk, 2**26 // words)
    gradients, sums = ([2, 2], 2) if in_fp32 and dtype == "bfloat16" else ([4 if dtype == "float32" else 2], 1)
    assert head_bytes(hf, config) == tokens * words * (4 + sum(gradients)) + sums * 4 * words * hf["hidden_size"]


def test_only_groups_of_several_ranks_exchange_anything(scout: Run) -> None:
    groups, two = ("tensor", "expert", "expert_tensor", "pipeline"), (1, 2)
    for sizes in itertools.product(two, two, two, two):
        layout = Layout(**dict(zip(groups, sizes)))
        found = exchanged_bytes(scout.model.to_hf(), TrainerSetup(layout=layout))
        assert [getattr(found, group) > 0 for group in groups] == [size > 1 for size in sizes], layout


def test_the_heads_memory_does_not_grow_with_the_micro_batch(dense: Run) -> None:
    hf = dense.model.to_hf()
    small, large = (TrainerSetup(dtype="bfloat16", tokens_per_micro_batch=n) for n in (1024, 65536))
    assert head_bytes(hf, small) == head_bytes(hf, large)
    assert trainer_memory(hf, small, 16, 1, True).total < trainer_memory(hf, large, 16, 1, True).total


def test_the_command_prints_what_is_promised_and_says_by_its_exit_code_whether_it_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["plan", "scalerl_8b", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    promised = {"experiment", "parameters", "gpus", "roles", "layout", "memory_per_rank_gib", "seconds_per_step"}
    assert promised | {"gpu_hours", "fits", "problems"} <= told.keys()
    assert (told["fits"], told["problems"], told["gpus"]) == (True, [], 80)
    assert told["parameters"]["total"] == pytest.approx(8.03e9, rel=1e-3)
    assert cli.main(["plan", "scalerl_8b", "--hardware", "h100"]) == 1
    assert "does not run: a generator device does not fit: " in (out := capsys.readouterr().out)
    assert "fits, with " in out
    assert cli.main(["plan", "scalerl_8b", "--hardware", "tpu"]) == 1
    assert "no hardware 'tpu' in the table" in capsys.readouterr().err
    assert cli.main(["plan", "scalerl_8b", "--mfu", "40"]) == 1
    assert "--mfu 40.0 is no share" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mfu", "expert-mfu", "bandwidth", "exchange", "median", "iteration", "dropped"])
def test_a_share_is_between_0_and_1_and_0_where_nothing_is_divided_by_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    may_be_0 = name in ("iteration", "dropped")
    for value, may in ((-0.5, False), (0.0, may_be_0), (1.5, False), (2.0, False), (float("nan"), False)):
        refused = f"scalelab: --{name} {value} is no share: give a number between 0 and 1\n"
        cli.main(["plan", "quickstart", f"--{name}={value}"])
        assert capsys.readouterr().err == ("" if may else refused)


def test_a_plan_imports_no_torch() -> None:
    code = "import sys; from scalelab.cli import main; main(['plan', 'scalerl_8b']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900, stdout=subprocess.DEVNULL)


def test_json_of_a_plan_is_reproducible(dense: Run) -> None:
    first, second = (plan_of(dense, placement(dense), device("gb200"), ASSUMED) for _ in range(2))
    assert dataclasses.asdict(first) == dataclasses.asdict(second)


@pytest.mark.parametrize("command", [["plan"], ["simulate", "--no-search", "--hours", "2"]])
def test_a_budget_with_a_price_says_what_it_costs(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["h100/scalerl_8b", *command[1:], "--set", "Budget.hour_price=2.5"]
    assert cli.main([command[0], *asked]) in (None, 0)
    said = capsys.readouterr().out
    found = re.search(r"([\d,]+) GPU-hours, which cost ([\d,]+)", said)
    assert found is not None
    hours, cost = (float(text.replace(",", "")) for text in found.groups())
    assert cost == pytest.approx(2.5 * hours, abs=2.5)


def test_a_price_that_is_none_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "-1", "1e308", "'cheap'"):
        assert cli.main(["plan", "h100/scalerl_8b", "--set", f"Budget.hour_price={wrong}"]) == 1
        told = capsys.readouterr().err
        assert "hour_price" in told
        assert told.count("\n") == 1


@pytest.mark.parametrize("gpus", [40, 80, 800])
def test_checkpoints_take_a_copy_every_hour_on_any_number_of_devices(gpus: int) -> None:
    run, h100 = resolve("h100/scalerl_8b").run, device("h100")
    assert run.checkpoint_hours == 1
    place = resize(run, gpus)
    seconds = plan_of(run, place, h100, ASSUMED).seconds
    size = parameters(run.model.to_hf()).total * (2 + 12)
    copy = size / place.trainers / 20e9
    without = seconds["step"] - seconds["evaluations"]
    assert seconds["checkpoint"] == pytest.approx(copy * without / 3600, rel=0.01)


def test_the_placements_of_the_docs_are_the_plans() -> None:
    """The table of docs/plan.md; the two with 512 GPUs have the batch that they name."""
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    gib = r"([\d.]+), ([\d.]+) of ([\d.]+)"
    row = rf"^\| `(\S+)`.*? \| (\d+) (\w+) \| (\d+): .*? \| (\d+) × (\d+) \| {gib} \| ([\d.]+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) == 9
    for name, count, kind, *said in rows:
        run, hardware = resolve(name).run, device(kind.lower())
        plan = plan_of(run, placement(run), hardware, ASSUMED)
        place = plan.placement
        sizes = [f"{place.trainers}", f"{place.engines}", f"{place.generator.tensor_parallel}"]
        memory = [f"{gib:.1f}" for gib in (plan.trainer.total, plan.generator.total, hardware.memory_gib)]
        assert (place.devices, plan.problems) == (int(count), ()), name
        assert said == [*sizes, *memory, f"{plan.seconds['step']:.1f}"], name


def test_the_costs_of_a_clusters_commands_are_the_plans() -> None:
    """The table of docs/cluster.md."""
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    row = r"^\| `(\S+)`(?:, at most)? \| (\d+) (\w+) \| (\d+) s \| (\d+) \| ([\d.]+) \| (\d+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) == 4
    for name, count, kind, *said in rows:
        run, hardware = resolve(name).run, device(kind.lower())
        tuning = name.startswith("sft/")
        assert int(count) == (run.sft.trainers if tuning else run.devices), name
        if tuning:
            steps, seconds = run.sft.steps, fine_tuning_seconds(run, hardware, ASSUMED)
        else:
            steps, seconds = 100, plan_of(run, placement(run), hardware, ASSUMED).seconds["step"]
        hours = steps * seconds / 3600
        assert said == [f"{seconds:.0f}", f"{steps}", f"{hours:.1f}", f"{hours * int(count):.0f}"], name


def test_an_engine_whose_attention_is_chunked_takes_two_milliseconds_more_a_token(dense: Run, scout: Run) -> None:
    """vLLM captures no whole graph there."""
    for run, more in ((dense, 0.0), (scout, 0.002)):
        with_it, without = (
            plan_of(run, placement(run), device("gb200"), assumed).decoding.seconds
            for assumed in (ASSUMED, dataclasses.replace(ASSUMED, chunked=0.0))
        )
        assert with_it - without == pytest.approx(more, abs=2e-4)


def test_of_trainers_that_compute_alike_the_one_that_cuts_the_model_least_is_fastest(dense: Run) -> None:
    found = fastest(dense, 8, device("gb200"), ASSUMED)
    assert found is not None
    assert (found.layout.tensor, found.layout.pipeline, found.layout.context) == (1, 1, 1)


def test_prompts_that_engines_have_no_room_for_are_taken_to_fill_a_quarter_of_it(dense: Run) -> None:
    room = dense.generator.max_model_len - dense.recipe.max_tokens
    assert [fitting_prompt(dense, tokens) for tokens in (room, room + 1)] == [room, round(room / 4)]
