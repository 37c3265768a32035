"""Monitors: each departure is said once when it begins and once when it is over."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.watch.monitors import ADVICE, Monitors, Name, Watch


def record(step: int, **changes: Any) -> dict[str, Any]:
    task = {"completions": 100, "truncated": changes.pop("truncated", 0.0), "outcomes": changes.pop("outcomes", {})}
    healthy = {
        "step": step,
        "time": 10.0 * step,
        "grad_norm": 1.0,
        "skipped": False,
        "entropy": 0.5,
        "ratio_clipped": 0.0,
        "same_version_gap_mean": 1e-6,
        "router": {"moe_imbalance_max": 2.0},
        "seconds": {"wait": 1.0, "build": 0.1, "step": 5.0},
        "generator_idle_seconds": 0.0,
        "tasks": {"math": task},
    }
    return healthy | changes


def alarms(watch: Watch, records: list[dict[str, Any]]) -> list[tuple[int, str, str, str]]:
    return [(a.step, a.name, a.level, a.subject) for r in records for a in watch.step(r)]


def test_a_healthy_run_raises_nothing() -> None:
    assert not alarms(Watch(Monitors(), experts=16), [record(step) for step in range(100)])


@pytest.mark.parametrize(
    ("name", "change", "subject"),
    [
        ("truncated", {"truncated": 0.2}, "math"),
        ("skipped", {"skipped": True, "grad_norm": float("nan")}, ""),
        ("grad_norm", {"grad_norm": 100.0}, ""),
        ("gap", {"same_version_gap_mean": 3.0}, ""),
        ("entropy", {"entropy": 1e-4}, ""),
        ("ratio_clipped", {"ratio_clipped": 0.9}, ""),
        ("verifier_error", {"outcomes": {"error": 50}}, "math"),
        ("verifier_timeout", {"outcomes": {"timeout": 50}}, "math"),
        ("router", {"router": {"moe_imbalance_max": 15.9}}, ""),
        ("trainer_starved", {"seconds": {"wait": 600.0, "build": 0.1, "step": 5.0}}, ""),
    ],
)
def test_each_departure_is_an_alarm_once_and_is_over_once(name: str, change: dict[str, Any], subject: str) -> None:
    watch = Watch(Monitors(window=3), experts=16)
    records = [record(step) for step in range(20)]
    records += [record(step, **change) for step in range(20, 30)]
    records += [record(step) for step in range(30, 60)]
    found = [(level, about) for _, n, level, about in alarms(watch, records) if n == name]
    assert [each for each in found if each[0] != "warning"] == [("alarm", subject), ("over", subject)]


def test_idle_generators_are_starved_and_a_restarted_one_is_not_counted_backwards() -> None:
    watch = Watch(Monitors(window=3), generators=2)
    idle = [record(step, generator_idle_seconds=20.0 * step) for step in range(6)]
    restarted = [record(6, generator_idle_seconds=1.0), *(record(s, generator_idle_seconds=1.0) for s in range(7, 12))]
    found = alarms(watch, idle + restarted)
    assert [(name, level) for _, name, level, _ in found] == [
        ("generator_starved", "alarm"),
        ("generator_starved", "over"),
    ]


def test_steps_with_nothing_to_learn_make_no_gradient_an_explosion() -> None:
    rare = [record(step, grad_norm=1.0 if step % 10 == 0 else 0.0) for step in range(200)]
    assert not alarms(Watch(Monitors()), rare)


def test_a_warning_comes_before_the_alarm() -> None:
    watch = Watch(Monitors(window=1))
    found = alarms(watch, [record(step, truncated=0.01 * step) for step in range(20)])
    assert found == [(6, "truncated", "warning", "math"), (11, "truncated", "alarm", "math")]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 8))
def test_levels_are_those_of_the_mean_over_the_window(shares: list[float], window: int) -> None:
    watch, level = Watch(Monitors(window=window)), "over"
    for step, share in enumerate(shares):
        for alarm in watch.step(record(step, truncated=share)):
            level = alarm.level
        mean = sum(shares[max(0, step + 1 - window) : step + 1]) / min(step + 1, window)
        expected = "alarm" if mean > 0.10 else "warning" if mean > 0.05 else "over"
        assert level == expected or min(abs(mean - 0.10), abs(mean - 0.05)) < 1e-9


def test_only_what_stop_on_names_stops_the_run() -> None:
    watch = Watch(Monitors(window=1, stop_on=("skipped",)))
    assert watch.must_stop(watch.step(record(1, truncated=0.5))) is None
    stopping = watch.must_stop(watch.step(record(2, truncated=0.5, skipped=True)))
    assert stopping is not None
    assert stopping.name == "skipped"
    assert "not finite" in stopping.line


def test_none_switches_a_check_off() -> None:
    none: dict[str, Any] = {field.name: None for field in fields(Monitors) if field.default not in ((), 10, True)}
    off = Monitors(**none, skipped=False)
    bad = record(1, truncated=1.0, skipped=True, entropy=0.0, outcomes={"error": 100}, same_version_gap_mean=9.0)
    assert not Watch(off).step(bad)


def test_limits_that_no_run_could_keep_are_refused() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        Monitors(window=0)
    with pytest.raises(ValueError, match=r"Monitors.gap is -1.0"):
        Monitors(gap=-1.0)
    with pytest.raises(ValueError, match="names 'entropi'"):
        Monitors(stop_on=("entropi",))  # type: ignore[arg-type]


def test_every_alarm_says_what_to_do() -> None:
    assert set(ADVICE) == set(get_args(Name))


def test_an_alarm_about_a_verifier_shows_the_exception_itself() -> None:
    watch = Watch(Monitors(window=1))
    failing = record(1, outcomes={"error": 50})
    failing["tasks"]["math"]["error"] = "the reward function raised KeyError: 'gold' (my_task.py:12)"
    [alarm] = watch.step(failing)
    assert alarm.line.endswith("the policy: the reward function raised KeyError: 'gold' (my_task.py:12)")
    assert alarm.record()["cause"] == failing["tasks"]["math"]["error"]
    [over] = watch.step(record(2))
    assert "KeyError" not in over.line
