"""The account of a journal against a slow one, written independently: what counts, stays, is undone and spent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.store.account import Account, replay
from scalelab.store.chain import ChainEntry
from scalelab.store.manifest import ALARMS, EVALS, METRICS, UNDONE, WALL
from scalelab.store.retention import Retention

GIB = 2**30
EVALUATED = st.lists(st.integers(0, 40), unique=True, max_size=8).map(sorted)
TRAINED = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3 * GIB)), unique_by=lambda one: one[0], max_size=8)
RULES = st.fixed_dictionaries(
    {
        "keep_last": st.none() | st.integers(1, 4),
        "keep_every": st.none() | st.integers(1, 6),
        "train_gib": st.none() | st.sampled_from([0.5, 1.0, 4.0]),
    }
)


def entries(*bodies: tuple[str, dict[str, Any]]) -> list[ChainEntry]:
    return [ChainEntry(n, 1, kind, body, f"hash {n}") for n, (kind, body) in enumerate(bodies, 1)]


def of_step(step: int, size: int, **more: Any) -> tuple[str, dict[str, Any]]:
    record = {"step": step, **more}
    return "step", {"records": [record], "files": {f"rollouts/train_{step:06d}.parquet": [size, f"t{step}"]}}


def evaluation(step: int, tasks: tuple[str, ...] = ("math", "code")) -> tuple[str, dict[str, Any]]:
    records = [{"step": step, "task": task} for task in tasks]
    return "evaluation", {"records": records, "files": {f"rollouts/step_{step:06d}.parquet": [7, f"e{step}"]}}


@given(RULES, EVALUATED, TRAINED)
def test_the_files_that_count_are_those_that_the_rule_leaves_on_the_disk(
    rule: dict[str, Any], evaluated: list[int], trained: list[tuple[int, int]]
) -> None:
    trained = sorted(trained)
    told = [("facts", {"facts": {"retention": rule}}), *(of_step(*one) for one in trained)]
    found = replay(entries(*told, *map(evaluation, evaluated)))
    stay = set(evaluated)
    if rule["keep_last"] is not None:
        every = rule["keep_every"]
        stay = set(evaluated[-rule["keep_last"] :]) | {one for one in evaluated if every and one % every == 0}
    left = list(trained)
    while rule["train_gib"] is not None and len(left) > 1 and sum(size for _, size in left) > rule["train_gib"] * GIB:
        left = left[1:]
    assert found.files.keys() == {f"rollouts/step_{one:06d}.parquet" for one in stay} | {
        f"rollouts/train_{one:06d}.parquet" for one, _ in left
    }
    assert Retention(**rule).kept(evaluated) == stay


@given(st.integers(1, 8), st.integers(0, 8))
def test_a_return_undoes_what_is_later_and_half_evaluations_and_nothing_else(steps: int, last: int) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    for step in range(1, steps + 1):
        told += [of_step(step, 5), ("alarm", {"records": [{"step": step}]}), evaluation(step)]
    told += [evaluation(0, ("math",)), ("files", {"files": {"config.gin": [3, "c"]}})]
    told += [("checkpoint", {"step": steps, "sha256": "s"})]
    found = replay(entries(*told, ("undo", {"step": last, "tasks": 2, "checkpoints": {"1": "one"}})))
    left = list(range(1, min(steps, last) + 1))
    gone = list(range(last + 1, steps + 1))
    assert [one["step"] for one in found.views[METRICS]] == left == [one["step"] for one in found.views[ALARMS]]
    assert [one["step"] for one in found.views[EVALS]] == [step for step in left for _ in range(2)]
    undone = [(one["file"], one["step"]) for one in found.views[UNDONE]]
    assert undone == [
        *((METRICS, step) for step in gone), *((ALARMS, step) for step in gone),
        *((EVALS, step) for step in gone for _ in range(2)), (EVALS, 0),
    ]  # fmt: skip
    assert list(found.lines) == left
    assert found.steps == len(left)
    kept = {f"rollouts/{kind}_{step:06d}.parquet" for step in left for kind in ("step", "train")}
    assert found.files.keys() == kept | {"rollouts/step_000000.parquet", "config.gin"}
    assert found.checkpoints == {1: "one"}


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.none() | st.floats(0, 9)), max_size=6))
def test_hours_are_those_of_the_line_with_the_most_and_seconds_the_largest(
    lines: list[tuple[float, float, float | None]],
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    for step, (trainer, generator, wall) in enumerate(lines, 1):
        kind, body = of_step(step, 5, compute_by_role={"trainer": trainer, "generator": generator})
        told.append((kind, body | ({} if wall is None else {"wall": [{"step": step, "wall_seconds": wall}]})))
    found = replay(entries(*told))
    assert sum(found.hours.values()) == max([0.0, *(a + b for a, b, _ in lines)])
    assert found.wall_seconds == max([0.0, *(wall for *_, wall in lines if wall is not None)])
    assert len(found.views[WALL]) == sum(wall is not None for *_, wall in lines)
    assert found.epoch == (1 if lines else 0)


def test_a_line_of_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'gossip' is no kind of line"):
        Account().apply(*entries(("gossip", {})))
