"""A run is held against the devices that are there before anything starts, and the nearest that fits is named."""

import itertools
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from moe.train.layout import check_layout
from scalelab.errors import LabError
from scalelab.experiment import load, resolve
from scalelab.hardware import DEVICES, Hardware, device, found, of_ray
from scalelab.plan.check import (
    LARGEST,
    PlacementCheck,
    _counts,
    check,
    check_fine_tuning,
    nearest,
    smallest,
    with_hardware,
)
from scalelab.plan.planner import RunPlan, narrowed, propose
from scalelab.plan.speed import Assumptions
from scalelab.run.config import Run

FITTING = [
    "scalerl_8b",
    "scalerl_17bx16",
    *load("h100"),
    *load("h200"),
]


def cluster(run: Run, count: int | None = None) -> Hardware:
    assert run.cluster.hardware is not None
    named = device(run.cluster.hardware)
    return Hardware(replace(named, per_node=run.cluster.devices_per_node), count or run.devices)


def offered(found: PlacementCheck) -> RunPlan:
    """The plan that a check offers in place of the run's own."""
    assert found.nearest is not None
    return found.nearest


@pytest.mark.parametrize("name", FITTING)
def test_every_experiment_on_gpus_fits_the_hardware_it_names(name: str) -> None:
    run = resolve(name).run
    found = check(run, cluster(run))
    assert found.problems == ()
    found.demand()
    check_layout(run.model.to_hf(), run.trainer.layout, run.cluster.trainers)


@pytest.mark.parametrize("name", [*FITTING, *load("sft"), "smollm2_gpu", "smollm2_one_gpu"])
def test_every_experiment_on_gpus_gives_its_engines_time_to_compile(name: str) -> None:
    run = resolve(name).run
    assert run.cluster.startup_seconds >= run.generator.start_timeout, "else the driver gives an engine up before"
    assert run.cluster.hang_seconds >= 600


@pytest.mark.slow
def test_a_misfit_is_refused_in_one_line_with_what_fits() -> None:
    run = resolve("scalerl_17bx16").run
    with pytest.raises(LabError) as refused:
        check(run, Hardware(device("h100"), 80)).demand()
    line = str(refused.value)
    assert "\n" not in line
    assert "a trainer rank does not fit: " in line
    assert "what fits on 80 × h100: --set Cluster.hardware='h100' --set Cluster.trainers=" in line


def test_on_one_gpu_both_roles_are_put_on_it_with_the_cache_that_fits() -> None:
    two, one = resolve("smollm2_gpu").run, Hardware(device("h100"), 1)
    refused = check(two, one)
    assert refused.problems == ("the run wants 2 devices (1 to train), there are 1",)
    words = [word for word in refused.line.split() if "=" in word][:-1]
    assert {"Cluster.share_devices=True", "Cluster.generators=1", "Cluster.trainers=1"} <= set(words)
    found = resolve("smollm2_gpu", [f"{k}={v}" for k, v in offered(refused).placement.settings().items()]).run
    assert check(found, one).problems == ()

    much = replace(found, generator=replace(found.generator, kv_cache_gib=60.0))
    full = check(much, one)
    assert full.problems[0].startswith("a trainer rank and an engine do not fit on one h100 of 79 GiB: ")
    cache = offered(full).placement.generator.kv_cache_gib
    fits = replace(found, generator=replace(found.generator, kv_cache_gib=cache))
    assert check(fits, one).problems == ()
    assert check(replace(fits, generator=replace(fits.generator, kv_cache_gib=cache + 1)), one).problems
    two_devices = offered(check(much, Hardware(device("h100"), 2)))
    assert offered(full).seconds["step"] > two_devices.seconds["step"]


def test_two_devices_are_not_shared_where_they_need_not_be() -> None:
    run = resolve("smollm2_one_gpu", ["GeneratorConfig.kv_cache_gib=60"]).run
    settings = offered(check(run, Hardware(device("h100"), 2))).placement.settings()
    found = resolve("smollm2_one_gpu", [f"{k}={v}" for k, v in settings.items()]).run
    assert (found.cluster.share_devices, found.devices, found.cluster.publication) == (False, 2, "files")


CHANGES = [
    ("smollm2_gpu", "h100", 1, ()),
    ("smollm2_gpu", "a100", 3, ("Evaluation.samples=2",)),
    ("smollm2_one_gpu", "h200", 8, ()),
    ("quickstart", "cpu", 1, ()),
    ("quickstart", "cpu", 4, ()),
    ("h100/scalerl_8b_node", "h200", 8, ()),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ("scalerl_8b", "h100", 8, ()),
            ("scalerl_8b", "h100", 80, ("Cluster.publication=nccl",)),
            ("scalerl_8b", "a100", 24, ()),
            ("scalerl_17bx16", "h100", 40, ()),
            ("scalerl_17bx16", "h100", 80, ()),
            ("scalerl_17bx16", "h100", 80, ("Recipe.router_replay=True",)),
            ("scalerl_17bx16", "b200", 40, ("Cluster.publication=nccl",)),
            ("h100/scalerl_17bx16", "gb200", 80, ()),
        )
    ),
]


@pytest.mark.parametrize(("experiment", "name", "count", "sets"), CHANGES)
def test_what_is_proposed_is_a_run_that_passes_the_same_check(
    experiment: str, name: str, count: int, sets: tuple[str, ...]
) -> None:
    run, assumed = resolve(experiment, sets).run, Assumptions()
    hardware = Hardware(device(name), count)
    found = nearest(run, hardware, assumed, run.cluster.trainers)
    assert found is not None
    pasted = shlex.split(found.placement.options())[1::2]
    made = resolve(experiment, [*sets, *pasted]).run
    assert check(made, hardware, assumed).problems == ()
    check_fine_tuning(made, hardware)
    assert found.placement.given_to(run) == made


def test_ranks_that_no_node_holds_are_refused_with_what_a_node_has() -> None:
    run, four = resolve("h100/scalerl_8b").run, replace(device("h100"), per_node=4)
    found = check(run, Hardware(four, 80))
    assert found.problems == (
        "8 trainer ranks are to share a node, and one has 4 devices: lower Cluster.devices_per_node to 4",
    )
    assert offered(found).placement.per_node == 4
    mended = replace(run, cluster=replace(run.cluster, devices_per_node=4))
    assert check(mended, Hardware(four, 80)).problems == ()
    few = replace(run, cluster=replace(run.cluster, trainers=4), sft=replace(run.sft, trainers=4))
    assert not any("a node" in problem for problem in check(few, Hardware(four, 80)).problems)


def test_engines_for_which_there_are_devices_but_no_nodes_are_refused() -> None:
    """Four nodes with 5 of 8 ranks have no room for four devices together; six nodes hold two engines each."""
    sets = ["Cluster.trainers=20", "SFT.trainers=20", "Cluster.devices_per_node=5", "GeneratorConfig.tensor_parallel=4"]
    full, torn = (resolve("h100/scalerl_8b", [*sets, f"Cluster.generators={n}"]).run for n in (12, 13))
    hardware = Hardware(device("h100"), 80)
    assert check(full, hardware).problems == ()
    refused = check(torn, hardware)
    assert refused.problems == (
        "nodes of 8 have room for 12 of 13 engines of 4 devices beside 20 trainer ranks, 5 on a node",
    )
    assert refused.nearest is not None


def test_nodes_of_unequal_size_count_as_what_they_are() -> None:
    # Two of the nodes of 8 take the trainer ranks, and four an engine each; nodes of 4 hold neither.
    node = {size: {"Alive": True, "Resources": {"GPU": size, "accelerator_type:H100": 1.0}} for size in (4, 8)}
    hardware = of_ray([node[8]] * 6 + [node[4]] * 8)
    assert (hardware.count, hardware.device.per_node) == (80, 8)
    sets = ["Cluster.trainers=16", "SFT.trainers=16", "GeneratorConfig.tensor_parallel=8", "Cluster.devices_per_node=8"]
    full, torn = (resolve("h100/scalerl_8b", [*sets, f"Cluster.generators={n}"]).run for n in (4, 8))
    assert check(full, hardware).problems == ()
    refused = check(torn, hardware)
    assert refused.problems == (
        "nodes of 8 and 4 have room for 4 of 8 engines of 8 devices beside 16 trainer ranks, 8 on a node",
    )
    made = offered(refused).placement.given_to(torn)
    assert made is not None
    assert check(made, hardware).problems == ()
    assert check(torn, Hardware(device("h100"), 80)).problems == (), "ten nodes of 8"


def test_a_small_node_does_not_tear_the_ranks_of_the_large_ones_apart() -> None:
    resources = {size: {"GPU": size, "accelerator_type:H100": 1.0} for size in (1, 8)}
    hardware = of_ray([{"Alive": True, "Resources": resources[size]} for size in [8] * 10 + [1]])
    torn = check(resolve("h100/scalerl_8b", ["Cluster.generators=100"]).run, hardware)
    assert offered(torn).placement.per_node == 8


@pytest.mark.slow
def test_too_few_devices_are_told_how_many_it_takes() -> None:
    run = resolve("scalerl_17bx16").run
    few = check(run, Hardware(device("h200"), 16))
    assert few.problems[0] == "the run wants 80 devices (16 to train), there are 16"
    assert (few.nearest, few.enough) == (None, 24)
    assert few.line.endswith("it takes at least 24 × h200")


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "name", "step"), [("scalerl_17bx16", "h200", 8), ("scalerl_8b", "h100", 1)])
def test_the_smallest_cluster_fits_and_a_smaller_one_does_not(experiment: str, name: str, step: int) -> None:
    run, assumed, kind = resolve(experiment).run, Assumptions(), device(name)
    least = smallest(run, kind, assumed)
    assert least is not None
    assert propose(run, Hardware(kind, least), assumed) is not None
    assert propose(run, Hardware(kind, least - step), assumed) is None


@pytest.mark.slow
def test_every_number_of_ranks_in_a_node_is_tried_and_then_nodes_up_to_twice_as_many() -> None:
    counts = list(_counts(h100 := device("h100")))
    assert counts[: h100.per_node + 1] == [*range(1, h100.per_node + 1), 2 * h100.per_node]
    assert all(few < more <= 2 * few for few, more in itertools.pairwise(counts))
    assert LARGEST / 2 < counts[-1] <= LARGEST


def test_what_no_cluster_of_a_device_holds_is_said() -> None:
    run = resolve("scalerl_8b").run
    tiny = replace(device("a100"), memory_gib=6.0)
    assert "nothing fits on up to 512 × a100" in check(run, Hardware(tiny, 80)).line


def test_a_cluster_is_described_by_what_ray_says_of_its_nodes() -> None:
    node = {"Alive": True, "Resources": {"GPU": 8.0, "CPU": 96.0, "accelerator_type:H100": 1.0}}
    head = {"Alive": True, "Resources": {"CPU": 8.0}}
    dead = {"Alive": False, "Resources": {"GPU": 8.0}}
    hardware = of_ray([head, node, node, dead])
    assert (hardware.count, hardware.device) == (16, device("h100"))
    with pytest.raises(LabError, match=r"cluster of 1 node has no GPU: .* or bind Cluster.device = 'cpu'"):
        of_ray([head])
    with pytest.raises(LabError, match="mixes H100, H200"):
        of_ray([node, {"Alive": True, "Resources": {"GPU": 8.0, "accelerator_type:H200": 1.0}}])


def test_devices_are_known_by_the_names_that_others_have_for_them() -> None:
    assert found("NVIDIA H100 80GB HBM3", 8, 8).device == DEVICES["h100"]
    assert found("NVIDIA GB200", 4, 4).device == DEVICES["gb200"]
    unknown = found("RTX-PRO-6000", 2, 2, memory_gib=95.0)
    assert (unknown.known, unknown.device.memory_gib, unknown.device.name) == (False, 95.0, "RTX-PRO-6000")
    assert unknown.doubt == "RTX-PRO-6000 is not in the plan's table: it counts on 95 GiB and an A100's speed"
    assert found("H100", 8, 8).doubt is None
    assert not found("CPU", 8, 8).known, "the table's rule of thumb for a core is no GPU's"


def test_a_run_takes_the_hardware_that_it_finds_unless_it_names_one() -> None:
    run, unknown = resolve("smollm2_gpu").run, found("RTX-PRO-6000", 2, 2, memory_gib=95.0)
    assert with_hardware(run, found("H200", 8, 8)).cluster.hardware == "h200"
    assert with_hardware(run, unknown) == run
    named = resolve("smollm2_gpu", ["Cluster.hardware=h100"]).run
    assert with_hardware(named, found("H200", 8, 8)) == named


def test_of_a_device_in_the_table_the_smaller_of_its_memories_counts() -> None:
    node = {"Alive": True, "Resources": {"GPU": 8.0, "accelerator_type:A100": 1.0}}
    assert of_ray([node], 40.0).device.memory_gib == 40.0
    assert of_ray([node], 79.6).device == of_ray([node]).device == DEVICES["a100"]


@pytest.mark.slow
def test_an_engine_wider_than_a_node_is_refused_with_the_most_that_would_do() -> None:
    run = resolve("h100/scalerl_8b").run
    wide = replace(run, generator=replace(run.generator, tensor_parallel=16))
    found = check(wide, Hardware(device("h100"), 80))
    assert (
        "an engine's 16 devices must share a node of 8: lower GeneratorConfig.tensor_parallel to 8 or less"
        in found.line
    )
    assert found.nearest is not None
    assert found.nearest.placement.generator.tensor_parallel <= 8


def test_engines_wider_than_a_node_are_offered_as_wide_as_one_and_as_many() -> None:
    run = resolve("h100/scalerl_8b", ["GeneratorConfig.tensor_parallel=16"]).run
    refused = check(run, Hardware(device("h100"), run.devices))
    place = offered(refused).placement
    assert (place.engines, place.generator.tensor_parallel, place.trainers) == (run.cluster.generators, 8, 16)
    made = place.given_to(run)
    assert made is not None
    assert check(made, Hardware(device("h100"), 528)).problems == ()
    assert offered(check(run, Hardware(device("h100"), 80))).placement.devices <= 80


def test_the_page_of_clusters_names_experiments_for_its_gpus_that_fit_and_no_setting_that_does_not() -> None:
    """Its commands, with the bindings that it gives them; a folder or an address is the reader's own."""
    text = (Path(__file__).parents[2] / "docs/cluster.md").read_text().replace("\\\n", "")
    commands = re.findall(r"scalelab (?:plan|rehearse|run|launch \w+) (\S+)(.*)", text)
    assert len(commands) >= 7
    offered = re.findall(r"--set (Cluster\.publication=\w+)", text)
    for name, rest in commands:
        sets = re.findall(r"--set ((?:Recipe|Budget|Evaluation|Cluster)\.\S+)", rest)
        run = resolve(name, sets).run
        assert (run.cluster.hardware or "h100") == "h100", name
        assert check(run, cluster(run)).problems == (), name
    for setting in offered:
        for name in ("h100/scalerl_8b", "h100/scalerl_17bx16"):
            way, _, value = setting.partition("=")
            run = resolve(name, [f"{way}={value!r}"]).run
            assert check(run, cluster(run)).problems == (), setting


@pytest.mark.parametrize(("nodes", "fits"), [(67, False), (68, True), (69, True)])
def test_engines_wider_than_a_node_are_narrowed_where_nodes_have_room_for_as_many(nodes: int, fits: bool) -> None:
    """16 trainer ranks and 64 engines of 4 devices in place of 8 fill 68 nodes."""
    run = resolve("h100/scalerl_8b", ["GeneratorConfig.tensor_parallel=8", "Cluster.devices_per_node=4"]).run
    plan = narrowed(run, Hardware(device("gb200"), 4 * nodes), Assumptions())
    place = None if plan is None else plan.placement
    assert (place is not None) == fits
    if place is not None:
        assert (place.trainers, place.engines, place.generator.tensor_parallel) == (16, 64, 4)
