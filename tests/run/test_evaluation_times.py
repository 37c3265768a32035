"""One object says when evaluations happen, and loop, plan and the bound on disk use agree with it."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.plan.disk import disk_needed
from scalelab.plan.planner import step_hours
from scalelab.run.evaluation_sets import HeldOut
from scalelab.run.settings import Budget, Evaluation

GIB = 2**30
EVALUATIONS = st.builds(
    Evaluation, every=st.integers(1, 9), every_hours=st.none() | st.floats(0.01, 9.0, allow_subnormal=False)
)


def evaluated(rule: Evaluation, hours: list[float]) -> set[int]:
    """Steps that a loop evaluates whose steps take so many hours: it asks `due` after each."""
    booked = [0.0, *accumulate(hours)]
    due = {step for step, (since, now) in enumerate(pairwise(booked), 1) if rule.due(step, since, now)}
    return {0, len(hours)} | due


@given(EVALUATIONS, st.integers(0, 60), st.floats(0.05, 3.0))
def test_the_steps_of_a_budget_are_those_that_are_due_in_a_run_of_even_steps(
    rule: Evaluation, last: int, hours: float
) -> None:
    listed = rule.steps(last, hours)
    assert listed == sorted(set(listed))
    booked = [step * hours for step in range(last + 1)]
    assert set(listed) == {0, last} | {
        step for step in range(1, last + 1) if rule.due(step, booked[step - 1], booked[step])
    }


@given(EVALUATIONS, st.lists(st.floats(0.01, 3.0), max_size=60))
def test_no_run_evaluates_more_than_its_steps_and_its_hours_allow(rule: Evaluation, hours: list[float]) -> None:
    found = evaluated(rule, hours)
    assert found <= set(rule.steps(len(hours)))
    before_last = sum(hours[:-1])
    budget = Budget(steps=100, hours=max(before_last, 1e-6) * (1 + 1e-9))  # spent by the last step, which began within
    most = rule.cadence(HeldOut()).most(budget.hours)
    assert most is None or len(found) <= most


@given(EVALUATIONS, st.floats(0.05, 3.0))
def test_the_period_is_the_mean_number_of_steps_between_evaluations(rule: Evaluation, hours: float) -> None:
    # Where a step takes as long as the period, the last bits of sums decide whether it is due.
    assume(rule.every_hours is None or not rule.every_hours / 2 < hours < rule.every_hours * 1.01)
    last = 5000
    count = len(rule.steps(last, hours)) - 2
    assert count == pytest.approx(last / rule.period(hours), abs=2)


def test_evaluations_by_hours_may_fill_as_much_disk_as_one_after_every_step() -> None:
    """scalerl_8b with 1,000 steps: 1,001 evaluations of 16,000 completions of 14,336 tokens each."""
    budget = ["Budget.steps=1000", "Budget.hours=None"]
    each, by_hours = (
        disk_needed(resolve("scalerl_8b", [*budget, rule]).run, None).completions
        for rule in ("Evaluation.every=1", "Evaluation.every_hours=0.001")
    )
    assert each == by_hours == 1001 * 16_000 * (14_336 * 18 + 64)
    assert each / GIB == pytest.approx(3850, abs=1)


def test_a_budget_of_hours_bounds_evaluations_by_hours_whatever_steps_take() -> None:
    """80 hours and an evaluation every 4: after the first weights and every fourth hour, and at the end."""
    run = resolve("study/scalerl").run
    rows = len(run.tasks) * run.evaluation.prompts * run.evaluation.samples
    assert disk_needed(run, None).completions == 22 * rows * (run.recipe.max_tokens * 18 + 64)


def test_the_steps_of_a_budget_of_hours_are_bounded_by_the_plans_where_the_hardware_is_named() -> None:
    run = resolve("h100/scalerl_8b").run
    hours = step_hours(run)
    assert hours is not None
    assert run.budget.hours is not None
    steps = -(-run.budget.hours // hours)
    rows = run.evaluation.prompts * run.evaluation.samples * len(run.tasks)
    evaluations = steps // run.evaluation.every + 2
    assert disk_needed(run, hours).completions == evaluations * rows * (run.recipe.max_tokens * 18 + 64)
    assert step_hours(resolve("quickstart", ["Cluster.hardware=cpu"]).run) is None


@given(st.integers(1, 99), st.integers(1, 99) | st.none(), st.integers(1, 99))
def test_a_budget_pays_for_the_steps_that_begin_within_it(steps: int, hours: int | None, each: int) -> None:
    budget = Budget(steps=steps, hours=hours)
    taken = 0
    while taken < budget.steps and (budget.hours is None or taken * each < budget.hours):  # as the loop goes on
        taken += 1
    assert budget.steps_within(each) == taken
    assert budget.steps_within(None) == steps


def test_an_evaluation_that_no_hours_separate_is_refused() -> None:
    with pytest.raises(LabError, match="every_hours"):
        resolve("quickstart", ["Evaluation.every_hours=0"])
