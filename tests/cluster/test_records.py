"""Records of experts go from the engines to the trainer's ranks, and the driver holds their keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster as Nodes

from moe.sequences import TrainingSequence
from scalelab.cluster.faults import Faults
from scalelab.cluster.records import Replayed, StoredRecord, fetched, taken_out, with_keys
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.types import Rollout
from scalelab.rollout.types import Completion, Request
from scalelab.run.settings import Cluster
from scalelab.run.work import RolloutWork
from scalelab.store.waiting_rollouts import read_rollouts, write_rollouts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LAYERS, EXPERTS = 6, 2


def record(number: int, tokens: int = 9_000) -> np.ndarray:
    """A record that is too large for Ray to send it along with an answer."""
    return np.random.default_rng(number).integers(0, 8, (tokens, LAYERS, EXPERTS)).astype(np.int16)


def completion(number: int, kind: Any = "train") -> Completion:
    request = Request(str(number), (1, 2, 3), 9_000, kind=kind)
    tokens = np.arange(8_997, dtype=np.int32)
    zeros = np.zeros(8_997, np.float32)
    return Completion(
        request, tokens, zeros, ((0, 0, 8_997),), zeros > 0, False, False, routed_TLK=record(number)
    )  # fmt: skip


def rollout(number: int, record_of: Any) -> Rollout:
    one = completion(number)
    return Rollout(
        "math/1", "math", np.array(one.request.prompt_ids), one.token_ids, one.logprobs_T, one.forced_T, one.spans,
        float(number % 2), "passed", routed_TLK=record_of,
    )  # fmt: skip


@ray.remote(num_cpus=0)
class Engine:
    def collect_apart(self, numbers: list[int]) -> tuple[list[Completion], list[np.ndarray]]:
        return taken_out([completion(number, "eval" if number == 1 else "train") for number in numbers])

    def end(self) -> None:
        ray.actor.exit_actor()


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self) -> None:
        self._replayed = Replayed()

    def hold(self, keys: list[StoredRecord | None]) -> list[int]:
        return self._replayed.hold(keys)

    def put_into(self, sequences: list[TrainingSequence], lost: list[int]) -> list[TrainingSequence]:
        return self._replayed.put_into(sequences, lost)


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[Nodes]:
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 2, "object_store_memory": 2**28, "_system_config": soon}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def collected(numbers: list[int], **where: Any) -> list[Completion]:
    """Completions of an engine that is gone by the time that their records are wanted."""
    actor: Any = Engine  # as Ray's decorator made it
    engine = actor.options(**where).remote()
    answer, records = engine.collect_apart.options(num_returns=2).remote(numbers)
    completions = with_keys(ray.get(answer, timeout=60), records)
    engine.end.remote()
    return completions


def keys(numbers: list[int], **where: Any) -> list[Any]:
    return [one.routed_TLK for one in collected(numbers, **where)]


def test_records_outlive_their_engine_and_those_of_evaluations_are_let_go() -> None:
    first, evaluation, last = keys([0, 1, 2])
    assert evaluation is None
    assert first.shape == record(0).shape
    one, none, two = fetched([first, None, last])
    np.testing.assert_array_equal(one, record(0))
    np.testing.assert_array_equal(two, record(2))
    assert none is None


def test_what_the_driver_holds_of_a_record_is_small() -> None:
    with_records, with_key = completion(0), collected([0])[0]
    none: Any = None
    sizes = [len(ray.cloudpickle.dumps(replace(one, token_ids=none))) for one in (with_records, with_key)]
    assert sizes[0] - sizes[1] > record(0).nbytes - 2_000


def test_ranks_replay_the_same_records_when_some_are_lost_with_a_node(nodes: Nodes) -> None:
    actor: Any = Rank  # as Ray's decorator made it
    held, ranks = keys([0, 2]), [actor.remote() for _ in range(2)]
    assert ray.get([rank.hold.remote([]) for rank in ranks], timeout=60) == [[], []]
    far = nodes.add_node(num_cpus=1, resources={"far": 1}, object_store_memory=2**27)
    gone = keys([3], resources={"far": 1})
    nodes.remove_node(far, allow_graceful=False)
    sequences = [TrainingSequence(np.arange(9_000, dtype=np.int32)) for _ in range(3)]
    lost = ray.get([rank.hold.remote([*held, *gone]) for rank in ranks], timeout=90)
    assert lost == [[2], [2]]
    for rank in ranks:
        # As if another rank lacked the second, too.
        found = ray.get(rank.put_into.remote(sequences, [1, 2]), timeout=60)
        np.testing.assert_array_equal(found[0].routed_TLK, record(0))
        assert all((one.routed_TLK == -1).all() and one.routed_TLK.shape == record(0).shape for one in found[1:])


def test_a_checkpoint_leaves_out_records_that_lie_elsewhere_and_keeps_the_others(tmp_path: Path) -> None:
    [key] = keys([0])
    name = write_rollouts(tmp_path, [rollout(0, key), rollout(2, record(2))])
    assert (tmp_path / name).stat().st_size < 2 * record(2).nbytes
    without, whole = read_rollouts(tmp_path, name)
    assert without.routed_TLK is None
    np.testing.assert_array_equal(whole.routed_TLK, record(2))


def test_the_router_chooses_for_completions_without_a_record_beside_others_that_have_one() -> None:
    """Completions of before and after a resume: all sequences of a step say which experts to replay, or none does."""
    replayed, sequences = Replayed(), [TrainingSequence(np.arange(9_000, dtype=np.int32)) for _ in range(2)]
    assert replayed.hold([*keys([2]), None]) == []
    with_record, without = replayed.put_into(sequences, [])
    np.testing.assert_array_equal(with_record.routed_TLK, record(2))
    assert without.routed_TLK is not None
    assert without.routed_TLK.shape == record(2).shape
    assert (without.routed_TLK == -1).all()


def test_a_step_has_a_key_for_each_sequence_that_lacks_its_record() -> None:
    recipe = Recipe(generations_per_prompt=2, prompts_per_step=1)
    work = RolloutWork(recipe, None, 0, False)  # type: ignore[arg-type]
    [key] = keys([2])
    step = work.step([[rollout(1, record(1)), rollout(2, key)]], 0)
    assert step.records == [None, key]
    first, second = step.sequences.built()
    np.testing.assert_array_equal(first.routed_TLK, record(1))
    assert second.routed_TLK is None
    assert work.step([[rollout(1, record(1)), rollout(2, record(2))]], 0).records == []


def test_records_that_did_not_arrive_are_said_and_written() -> None:
    written: list[dict[str, Any]] = []
    said: list[str] = []
    Faults(Cluster(), written.append, said.append).lost_records(2, 16)
    assert [one["event"] for one in written] == ["unreplayed"]
    assert said == [f"{written[0]['error']}; the trainer's own router chooses for these completions"]
    assert written[0]["error"].startswith("2 of the 16 records of experts of a step did not arrive")
