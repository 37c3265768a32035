"""Large contents and records go from engines to graders, ranks and files, and the driver holds their keys alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from ray.cluster_utils import Cluster as Nodes
from ray.exceptions import GetTimeoutError, ObjectLostError

from moe.sequences import TrainingSequence
from scalelab import shards
from scalelab.cluster.graders import GraderActor, gradable
from scalelab.cluster.held_step import HeldStep, Lost
from scalelab.cluster.trainer_ranks import ClusterTrainer
from scalelab.experiment import resolve
from scalelab.recipe.recipe import Recipe
from scalelab.recipe.sequences import PlannedSequences
from scalelab.recipe.step import plan_step
from scalelab.recipe.types import AnyRollout, HeldRollout, Rollout
from scalelab.rollout.evaluation import Graded
from scalelab.rollout.types import AnyCompletion, Completion, HeldCompletion, LostVerdict, Request
from scalelab.run.books import new_books
from scalelab.run.ports import StepLostError
from scalelab.run.work import RolloutWork
from scalelab.shards import contents_table, fetched_records, row, stored, taken_out, with_contents, with_keys
from scalelab.store.completions import CompletionsFile
from scalelab.store.waiting_rollouts import read_rollouts, write_rollouts
from tasks.types import Prompt, Verdict, verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHARD_BYTES = 100_000
LAYERS, EXPERTS, TOKENS = 6, 2, 11_997
PROMPT = Prompt("math/1", "math", "what is 6 x 7?", "42")


def record(number: int, tokens: int = TOKENS + 3) -> np.ndarray:
    """A record that is too large for Ray to send it along with an answer."""
    return np.random.default_rng(number).integers(0, 8, (tokens, LAYERS, EXPERTS)).astype(np.int16)


def completion(number: int, kind: Any = "train", tokens: int = TOKENS, replay: bool = False) -> Completion:
    """A completion whose content is too large for that, too; some of its tokens are forced."""
    rng = np.random.default_rng(number)
    return Completion(
        Request(str(number), (1, 2, 3), 9_000, kind=kind),
        rng.integers(0, 1000, tokens).astype(np.int32),
        -rng.random(tokens, np.float32),
        ((0, 0, tokens - 4), (1, tokens - 4, tokens)) if tokens > 4 else ((0, 0, tokens),) if tokens else (),
        np.arange(tokens) % 7 == 3,
        truncated=number % 2 == 1,
        interrupted=True,
        text=f"so it is \\boxed{{{number}}}" + " " * 9_000,
        routed_TLK=record(number, tokens + 3) if replay else None,
    )


@ray.remote(num_cpus=0)
class Engine:
    def collect(self, completions: list[Completion]) -> Any:
        return taken_out(completions, SHARD_BYTES)

    def end(self) -> None:
        ray.actor.exit_actor()


@ray.remote(num_cpus=0, resources={"here": 0.01})
class Rank:
    def __init__(self) -> None:
        self._held = HeldStep()

    def hold(self, seconds: float, planned: Any, records: Any = ()) -> Lost:
        return self._held.fetch(planned, records, seconds)

    def take(self, lost: Lost) -> list[TrainingSequence]:
        return self._held.take(lost)

    def held_step(self, lost: Lost, *_: Any) -> Any:
        return lost


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[Nodes]:
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 2, "resources": {"here": 1}, "object_store_memory": 2**28, "_system_config": soon}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    tests = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}}
    ray.init(address=nodes.address, log_to_driver=False, runtime_env=tests)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def collected(completions: Sequence[Completion], where: str = "here") -> list[AnyCompletion]:
    """Completions of an engine that is gone by the time that their contents are wanted."""
    actor: Any = Engine  # as Ray's decorator made it
    engine = actor.options(resources={where: 0.01}).remote()
    answer, contents, records = engine.collect.options(num_returns=3).remote([*completions])
    light = with_keys(ray.get(answer, timeout=60), contents, records)
    engine.end.remote()
    return light


def graded(completions: Sequence[AnyCompletion], prompt: Prompt = PROMPT) -> list[AnyRollout]:
    """Rollouts, every other one of which has passed."""
    verdicts = [verdict("passed" if number % 2 else "failed") for number, _ in enumerate(completions)]
    work = RolloutWork(Recipe(), None, 0, False)  # type: ignore[arg-type]
    return work.rollouts(prompt, completions, verdicts)


@pytest.fixture
def far(nodes: Nodes) -> Any:
    """A node that a test takes away."""
    return nodes.add_node(num_cpus=1, resources={"far": 1}, object_store_memory=2**27)


def lost_with_its_node(nodes: Nodes, far: Any, completions: Sequence[Completion]) -> list[AnyCompletion]:
    light = collected(completions, "far")
    nodes.remove_node(far, allow_graceful=False)
    return light


def recipe(size: int) -> Recipe:
    return replace(Recipe(), generations_per_prompt=size, prompts_per_step=2, zero_variance="keep")


def same(one: TrainingSequence, other: TrainingSequence) -> bool:
    extras = one.extras.keys() == other.extras.keys()
    arrays = extras and all(np.array_equal(one.extras[name], other.extras[name]) for name in one.extras)
    return arrays and np.array_equal(one.tokens_T, other.tokens_T)


# What the driver holds.


def test_what_the_driver_holds_of_a_completion_and_its_record_is_small() -> None:
    [held] = collected([completion(0, replay=True)])
    assert isinstance(held, HeldCompletion)
    assert len(ray.cloudpickle.dumps(replace(held, content=None, routed_TLK=None))) < 2_000  # type: ignore[arg-type]
    assert isinstance(held.content, shards.StoredContent)
    assert held.routed_TLK is not None
    assert held.routed_TLK.shape == record(0).shape


def test_an_answer_below_a_bound_travels_whole_and_one_above_leaves_keys() -> None:
    assert taken_out([], 0) == ([], None, [])
    few, none, _ = taken_out([completion(0, tokens=50)], SHARD_BYTES)
    assert none is None
    assert few == [few[0]]
    assert isinstance(few[0], Completion)
    many, table, _ = taken_out([completion(n, tokens=700) for n in range(20)], SHARD_BYTES)
    assert table is not None
    assert all(isinstance(one, HeldCompletion) for one in many)


@given(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=5) | st.just("\ud800")), min_size=1, max_size=4))
def test_a_table_gives_back_every_token_flag_and_letter(drawn: list[tuple[int, str]]) -> None:
    given_ = [replace(completion(n, tokens=n), text=text) for n, text in drawn]
    table = contents_table(given_)
    for index, one in enumerate(given_):
        content = row(table, index)
        for name, expected in (
            ("completion_ids", one.token_ids), ("logprobs_T", one.logprobs_T), ("forced_T", one.forced_T)
        ):  # fmt: skip
            found = getattr(content, name)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        assert content.text == one.text


def test_counts_of_a_held_completion_are_those_of_its_tokens() -> None:
    broken = completion(2)
    broken.logprobs_T[0] = np.nan
    forced = completion(3)
    forced.logprobs_T[3] = np.nan  # a forced token, whose log-prob nobody reads
    for given_ in (completion(0), broken, forced):
        [one] = graded([given_])
        [held] = graded(collected([given_]))
        assert isinstance(held, HeldRollout)
        names = ("tokens", "sampled", "finite", "spans", "truncated", "interrupted", "oldest_version", "graded")
        assert {name: getattr(held, name) for name in names} == {name: getattr(one, name) for name in names}
    assert not graded([broken])[0].finite  # type: ignore[union-attr]
    assert graded([forced])[0].finite  # type: ignore[union-attr]


# A step.


def test_a_step_of_held_completions_is_the_step_of_whole_ones() -> None:
    """Same metrics in the driver, same sequences on a rank; whole and held ones may stand side by side."""
    groups = [[completion(n, replay=True) for n in range(4)], [completion(n, tokens=900) for n in range(4, 8)]]
    prompts = [PROMPT, replace(PROMPT, id="math/2")]
    entire = [graded(group, prompt) for group, prompt in zip(groups, prompts, strict=True)]
    mixed = [graded(collected(groups[0]), prompts[0]), entire[1]]
    expected, metrics = plan_step(entire, recipe(4), 1)
    planned, light = plan_step(mixed, recipe(4), 1)
    assert light == metrics
    assert planned.keys[4:] == [None] * 4
    assert None not in planned.keys[:4]
    actor: Any = Rank
    rank = actor.remote()
    records = [one.routed_TLK if isinstance(one, HeldRollout) else None for group in mixed for one in group]
    assert ray.get(rank.hold.remote(60.0, ray.put(planned), records), timeout=60) == Lost()
    sequences = ray.get(rank.take.remote(Lost()), timeout=60)
    assert len(sequences) == 8
    for n, (one, other) in enumerate(zip(sequences, expected.built(), strict=True)):
        assert same(one, other)
        np.testing.assert_array_equal(one.routed_TLK, record(n) if n < 4 else np.full_like(one.routed_TLK, -1))


def test_ranks_train_on_the_same_completions_when_some_are_lost_with_a_node(nodes: Nodes, far: Any) -> None:
    """Advantages and weights of those that are left stay; without a record the router chooses."""
    groups = [[completion(n, replay=True) for n in range(2)], [completion(n, replay=True) for n in range(2, 4)]]
    prompts = [PROMPT, replace(PROMPT, id="math/2")]
    expected, _ = plan_step([graded(one, prompt) for one, prompt in zip(groups, prompts, strict=True)], recipe(2), 1)
    held = [collected(groups[0]), lost_with_its_node(nodes, far, groups[1])]
    mixed = [graded(one, prompt) for one, prompt in zip(held, prompts, strict=True)]
    planned, _ = plan_step(mixed, recipe(2), 1)
    records = [one.routed_TLK for group in mixed for one in group]
    actor: Any = Rank
    ranks = [actor.remote() for _ in range(2)]
    lost = ray.get([rank.hold.remote(60.0, ray.put(planned), records) for rank in ranks], timeout=150)
    gone = Lost(frozenset({2, 3}), frozenset({2, 3}))
    assert lost == [gone, gone]
    other = Lost(frozenset(), frozenset({1}))  # as if another rank lacked the second one's record
    for rank in ranks:
        found = ray.get(rank.take.remote(Lost.together([gone, other])), timeout=60)
        assert [same(one, two) for one, two in zip(found, expected.built()[:2], strict=True)] == [True, True]
        np.testing.assert_array_equal(found[0].routed_TLK, record(0))
        assert (found[1].routed_TLK == -1).all()


def trainer_of(ranks: int, told: list[Any], *settings: str) -> ClusterTrainer:
    """The driver's half of a trainer, over ranks that fetch and do not train."""
    actor: Any = Rank
    trainer = ClusterTrainer.__new__(ClusterTrainer)
    trainer._run = resolve("quickstart", settings).run
    trainer._ranks = [actor.remote() for _ in range(ranks)]
    trainer.on_lost_completions = lambda *counts: told.append(counts)
    trainer.on_lost_records = lambda *counts: told.append(counts)
    return trainer


def test_a_step_goes_on_without_what_is_lost_and_says_so_and_one_that_lost_all_is_not_taken(
    nodes: Nodes, far: Any
) -> None:
    import asyncio

    told: list[Any] = []
    trainer = trainer_of(2, told)
    here, gone = collected([completion(0)]), lost_with_its_node(nodes, far, [completion(1)])

    def step(group: list[AnyRollout]) -> Any:
        planned, _ = plan_step([group], recipe(len(group)), 1)
        return SimpleNamespace(sequences=planned, records=[], loss=None, kept=False, held=True)

    refs, lost = asyncio.run(trainer._begin_step(step(graded([*here, *gone]))))
    assert lost == Lost(frozenset({1}))
    assert ray.get(refs, timeout=60) == [lost, lost]
    assert told == [(1, 2)]
    with pytest.raises(StepLostError, match="no completion of a step arrived"):
        asyncio.run(trainer._begin_step(step(graded([*gone, *gone]))))


def test_ranks_that_wait_for_late_contents_and_records_answer_before_they_count_as_lost() -> None:
    import asyncio

    @ray.remote(num_cpus=0)
    def late() -> Any:
        time.sleep(60)

    told: list[Any] = []
    trainer = trainer_of(1, told, "Cluster.stall_seconds=6.0")
    ref = late.remote()
    [here, other] = graded(collected([completion(0), completion(1, replay=True)]))
    assert isinstance(other, HeldRollout)
    planned, _ = plan_step([[here, replace(other, content=shards.StoredContent(0, ref))]], recipe(2), 1)
    records = [None, shards.StoredRecord((TOKENS + 3, 2, 2), 0, ref)]
    step: Any = SimpleNamespace(sequences=planned, records=records, loss=None, kept=False, held=True)
    _, lost = asyncio.run(trainer._begin_step(step))
    assert lost == Lost(frozenset({1}), frozenset({1}))
    assert told == [(1, 2), (1, 2)]
    ray.cancel(ref, force=True)


# Graders, files and checkpoints.


@pytest.fixture
def grader() -> GraderActor:
    class Verifier:
        def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
            return [verdict("passed" if "{4}" in text else "failed", detail=text[:5]) for _, text in items]

    actor = GraderActor([])
    actor._verifiers = {"math": Verifier()}
    return actor


def test_a_grader_reads_texts_by_their_keys_and_one_that_is_lost_is_an_error(
    nodes: Nodes, far: Any, grader: GraderActor
) -> None:
    light = [
        *collected([completion(4, "eval"), completion(5, "eval")]),
        *lost_with_its_node(nodes, far, [completion(4, "eval")]),
        completion(4, tokens=3),
    ]
    count, verdicts = grader.verify([(PROMPT, gradable(one)) for one in light], 100.0)
    assert count == 4
    assert [one.outcome for one in verdicts] == ["passed", "failed", "error", "passed"]
    assert verdicts[2].detail == shards.LOST
    assert [isinstance(one, LostVerdict) for one in verdicts] == [False, False, True, False]
    work = RolloutWork(Recipe(), None, 0, False)  # type: ignore[arg-type]
    answers = [Graded.of(one).answer for one in work.rollouts(PROMPT, light, verdicts)]
    assert answers == ["4", "5", None, "4"], "a vote of the majority needs no text in the driver"


def test_a_verdict_of_a_class_of_its_own_is_a_verdict_of_a_held_completion_too(grader: GraderActor) -> None:
    @dataclass(frozen=True)
    class Explained(Verdict):
        steps: int = 0

    own = Explained("failed", 0.25, 0.5, "half", {"form": 0.25}, steps=3)
    grader._verifiers["math"].verify = lambda items: [own] * len(items)
    light = [*collected([completion(4)]), completion(5, tokens=3)]
    _, verdicts = grader.verify([(PROMPT, gradable(one)) for one in light], 100.0)
    seen = ("outcome", "reward", "seconds", "detail", "parts")
    assert [[getattr(one, name) for name in seen] for one in verdicts] == [[getattr(own, name) for name in seen]] * 2


def test_a_verifier_that_miscounts_is_found_out_beside_a_lost_text(nodes: Nodes, far: Any, grader: GraderActor) -> None:
    grader._verifiers["math"].verify = lambda items: [verdict("passed")] * (len(items) + 1)
    light = [*collected([completion(4)]), *lost_with_its_node(nodes, far, [completion(5)])]
    count, verdicts = grader.verify([(PROMPT, gradable(one)) for one in light], 100.0)
    assert len(verdicts) != count


def test_a_file_has_the_same_rows_of_held_completions_and_the_verdict_of_a_lost_one(
    nodes: Nodes, far: Any, tmp_path: Path
) -> None:
    given_ = [completion(n, "eval") for n in range(3)]
    gone = graded(lost_with_its_node(nodes, far, [completion(7, "eval")]))

    def rows(name: str, rollouts: list[AnyRollout]) -> list[dict[str, Any]]:
        file = CompletionsFile(tmp_path / name)
        file.add(rollouts)
        file.finish().result(timeout=150)
        file.drop()
        found: list[dict[str, Any]] = parquet.read_table(tmp_path / name).to_pylist()
        return found

    expected = rows("whole.parquet", graded(given_))
    *found, last = rows("held.parquet", [*graded(collected(given_)), *gone])
    assert found == expected
    assert (last["tokens"], last["token_ids"], last["completion"], last["outcome"]) == (TOKENS, [], "", "failed")
    assert last["detail"] == shards.LOST


def test_a_checkpoint_holds_what_waits_and_generates_groups_again_whose_content_is_lost(
    nodes: Nodes, far: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalelab.run.books.BRIEF_SECONDS", 30.0)
    run = resolve("quickstart").run
    books, again = new_books(run), new_books(run)
    names = [books.draw(0) for _ in range(2)]
    kept, lost = (str(name) for name in names)
    one = [completion(n) for n in range(2)]
    half = [*collected(one[:1]), *lost_with_its_node(nodes, far, one[1:])]
    for name, light in ((kept, collected(one)), (lost, half)):
        books.finish(name, graded(light, books.groups[name].prompt), 0.5, None)
    again.restore(books.capture().written(tmp_path), tmp_path, print)
    assert again.groups[lost].rollouts is None
    assert again.schedule.in_flight == (lost,)
    restored = again.groups[kept].rollouts
    assert restored is not None
    for found, expected in zip(restored, graded(one, books.groups[kept].prompt), strict=True):
        assert isinstance(found, Rollout)
        np.testing.assert_array_equal(found.completion_ids, expected.completion_ids)  # type: ignore[union-attr]
        assert found.text == expected.text  # type: ignore[union-attr]


def test_a_checkpoint_leaves_out_records_that_lie_elsewhere_and_keeps_the_others(tmp_path: Path) -> None:
    held, here = graded([*collected([completion(0, replay=True)]), completion(2, replay=True)])
    [entire] = with_contents([held])
    assert entire is not None
    assert isinstance(here, Rollout)
    name = write_rollouts(tmp_path, [entire, here])
    without, full = read_rollouts(tmp_path, name)
    assert without.routed_TLK is None
    np.testing.assert_array_equal(full.routed_TLK, record(2))


# Records.


def test_records_outlive_their_engine_and_those_of_evaluations_are_let_go() -> None:
    kinds: list[Any] = ["train", "eval", "train"]
    light = collected([completion(n, kind, replay=True) for n, kind in enumerate(kinds)])
    keys: list[Any] = [one.routed_TLK for one in light]
    assert keys[1] is None
    found = fetched_records(keys)
    assert found.keys() == {0, 2}
    for n, one in found.items():
        np.testing.assert_array_equal(one, record(n))


def test_the_router_chooses_for_completions_without_a_record_beside_others_that_have_one() -> None:
    """Completions of before and after a resume: all sequences of a step say which experts to replay, or none does."""
    held, sequences = HeldStep(), [TrainingSequence(np.arange(TOKENS + 3, dtype=np.int32)) for _ in range(2)]
    assert held.fetch(sequences, [*stored([record(2)]), None], 60.0) == Lost()
    with_record, without = held.take(Lost())
    np.testing.assert_array_equal(with_record.routed_TLK, record(2))
    assert without.routed_TLK is not None
    assert without.routed_TLK.shape == record(2).shape
    assert (without.routed_TLK == -1).all()


def test_fetching_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    @ray.remote(num_cpus=0)
    def late() -> Any:
        time.sleep(60)

    ref = late.remote()
    [held] = graded(collected([completion(0)]))
    assert isinstance(held, HeldRollout)
    held = replace(held, content=shards.StoredContent(0, ref))
    began = time.monotonic()
    assert with_contents([held], 1.0) == [None]
    assert time.monotonic() - began < 30
    ray.cancel(ref, force=True)


def test_what_is_there_comes_beside_what_is_lost_and_what_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that keeps its time to the end leaves others none, if each is waited for in turn."""
    now = [0.0]

    def get(refs: Any, timeout: float) -> Any:
        if isinstance(refs, list):
            raise ObjectLostError("00", None, "") if "lost" in refs else GetTimeoutError
        if refs == "lost":
            raise ObjectLostError("00", None, "")
        now[0] += timeout if refs == "late" else min(timeout, 1.0)
        if refs == "late" or timeout < 1.0:  # it has to be brought here first
            raise GetTimeoutError
        return refs

    def wait(refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return [one for one in refs if one != "late"], [one for one in refs if one == "late"]

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr("scalelab.shards.time.monotonic", lambda: now[0])
    assert shards._shards(["lost", "late", "there"], 60.0) == {"there": "there"}
    assert shards._shards(["late", "there"], 60.0) == {"there": "there"}


def test_whole_completions_are_put_into_a_step_as_before() -> None:
    planned, _ = plan_step([graded([completion(n) for n in range(2)])], recipe(2), 1)
    assert planned.keys == []
    built = ray.get(ray.put(planned), timeout=60)
    assert not isinstance(built, PlannedSequences)
    assert [same(one, two) for one, two in zip(built, planned.built(), strict=True)] == [True, True]
