from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.terminal import plain_line
from scalelab.watch.progress import BLOCKS, Pace, Progress, Status, duration, sparkline


def status(step: int, compute: float = 0.0, **changes: Any) -> Status:
    facts = {"steps": 100, "unit": "GPU-hours", "completions": 0, **changes}
    return Status(step=step, compute=compute, **facts)


def record(task: str, rate: float, step: int = 10) -> dict[str, Any]:
    return {"step": step, "compute": 0.5, "compute_unit": "GPU-hours", "task": task, "pass_rate": rate, "stderr": 0.02}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1:00"),
        (179.7, "3:00"),
        (3599.6, "1:00:00"),
        (86399.7, "1 d 0 h"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations_are_rounded_before_they_are_split(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e8))
def test_minutes_and_seconds_of_a_duration_stay_below_60(seconds: float) -> None:
    assert all(int(part) < 60 for part in re.split("[: ]", duration(seconds))[1:] if part.isdigit())


def test_time_left_ends_with_the_budget_that_ends_first() -> None:
    pace = Pace()
    assert pace.seconds_left() is None
    for second in range(11):
        pace.note(second, status(second, compute=second * 0.5, hours=8.0))
    assert pace.seconds_left() == pytest.approx((8.0 - 5.0) / 0.5)
    steps_alone = Pace()
    for second in range(11):
        steps_alone.note(second, status(second))
    assert steps_alone.seconds_left() == pytest.approx(90)


def test_time_left_of_a_budget_in_hours_is_known_before_the_first_step() -> None:
    pace = Pace()
    pace.note(0, status(0, 0.0, hours=2.0))
    pace.note(60, status(0, 0.5, hours=2.0))
    assert pace.seconds_left() == pytest.approx(180)


def test_a_return_to_a_checkpoint_begins_a_new_estimate() -> None:
    pace = Pace()
    for second in range(10):
        pace.note(second, status(second))
    pace.note(10, status(4))
    assert pace.seconds_left() is None
    pace.note(12, status(5))
    assert pace.seconds_left() == pytest.approx(95 * 2)


def test_pace_forgets_what_is_older_than_twenty_steps_and_two_minutes() -> None:
    pace = Pace()
    for second in range(0, 1000, 10):  # 10 s a step, then 1 s a step
        pace.note(second, status(second // 10, steps=2000))
    for second in range(1000, 1200):
        pace.note(second, status(second - 900, steps=2000))
    assert pace.seconds_left() == pytest.approx(2000 - 299, rel=0.01)


@given(st.lists(st.floats(0, 1), max_size=60))
def test_a_sparkline_keeps_the_order_of_its_values(values: list[float]) -> None:
    drawn = sparkline(values, width=30)
    shown = values[-30:]
    assert len(drawn) == len(shown)
    heights = [BLOCKS.index(block) for block in drawn]
    assert all(heights[i] <= heights[j] for i in range(len(shown)) for j in range(len(shown)) if shown[i] <= shown[j])


def test_a_log_gets_whole_lines_without_control_characters() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.say("line\x1b[2J with a trick\r")
        progress.evaluated([record("math", 0.5), record("co[b]de", 0.25)])
        progress.show(status(3))
    first, second = stream.getvalue().splitlines()
    assert first == "line⟨001b⟩[2J with a trick⟨000d⟩"
    assert second == "step   10   0.5000 GPU-hours   math 0.500 ± 0.020   co[b]de 0.250 ± 0.020"


def test_a_log_gets_a_line_after_a_quarter_of_a_minute_and_later_ever_more_rarely() -> None:
    now, stream = [0.0], io.StringIO()
    progress = Progress(stream, terminal=False, clock=lambda: now[0])
    for second in range(3601):
        now[0] = float(second)
        progress.show(status(second, steps=7200, evaluated=(5, 10) if second < 20 else None))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 15/7200 · 1:59:45 left · 0.0000 GPU-hours · evaluation 5/10 completions"
    assert 40 < len(lines) < 100
    assert len(set(lines)) == len(lines)


def test_a_terminal_shows_bars_and_leaves_only_the_lines_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    screen = on_a_terminal()
    assert "\x1b[36m" in screen
    assert "━" in screen
    assert "40/100" in screen
    assert "1.0000 of 4 GPU-hours" in screen
    assert "co[b]de" in screen
    assert "evaluation" in screen
    assert screen.endswith("\x1b[2K")  # the last thing that is done is to take the bars away


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert not re.search(r"\x1b\[(3|9)\dm", on_a_terminal())


def on_a_terminal() -> str:
    now, stream = [0.0], io.StringIO()
    with Progress(stream, terminal=True, clock=lambda: now[0]) as progress:
        with progress.work("SFT", 10, "steps") as advance:
            now[0] += 1
            advance(5, "loss 0.5")
        for step, rate in ((0, 0.1), (20, 0.4), (40, 0.3)):
            now[0] += 1
            progress.evaluated([record("co[b]de", rate, step)])
            progress.show(status(step, compute=step / 40, hours=4.0, evaluated=(1, 2)))
    return stream.getvalue()


def test_work_before_the_first_step_says_how_far_it_is() -> None:
    now, stream = [0.0], io.StringIO()
    with Progress(stream, terminal=False, clock=lambda: now[0]).work("SFT", 600, "steps") as advance:
        for step in range(200):
            now[0] += 0.3
            advance(step + 1, f"loss {1 / (step + 1):.2f}")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "SFT 50/600 steps · loss 0.02 · 2:45 left"


def test_printable_text_is_left_as_it_is() -> None:
    assert plain_line("π ± 0.1 – 𝔸 [x]") == "π ± 0.1 – 𝔸 [x]"
