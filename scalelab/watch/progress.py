"""Show a person how a run is going: bars and sparklines on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalelab.terminal import plain_line

BLOCKS = "▁▂▃▄▅▆▇█"
REDRAW_SECONDS = 0.5
LINE_SECONDS, LONGEST_LINE_SECONDS = 15.0, 300.0
SPARKLINE_WIDTH, BAR_WIDTH = 24, 20

Advance = Callable[..., None]
"""Called as `advance(done)` or `advance(done, note)` while a piece of work goes on."""


@dataclass(frozen=True)
class Status:
    """A run at one moment.

    Attributes:
        step: optimiser steps done.
        steps: optimiser steps of the budget.
        compute: device-hours spent.
        unit: unit of `compute`, such as GPU-hours.
        completions: completions finished so far; only differences between two moments are shown.
        hours: device-hours of the budget; None if only steps limit the run.
        evaluated: graded and expected completions of the evaluation in progress; None outside one.
    """

    step: int
    steps: int
    compute: float
    unit: str
    completions: int
    hours: float | None = None
    evaluated: tuple[int, int] | None = None

    @property
    def fraction(self) -> float:
        """Share of the budget that is spent, by whichever of steps and hours is further."""
        of_steps = self.step / self.steps if self.steps else 1.0
        of_hours = self.compute / self.hours if self.hours else 0.0
        return min(1.0, max(of_steps, of_hours))


class Pace:
    """Estimate rates and the time left from the last moments of a run."""

    STEPS, SECONDS = 20, 120.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Status]] = deque(maxlen=4096)

    def note(self, now: float, status: Status) -> None:
        """Add a moment; forget those older than both 20 steps and two minutes, and all after a return to a checkpoint.

        Args:
            now: seconds on a clock that only goes forward.
            status: the run at that time.
        """
        seen = self._seen
        if seen and status.step < seen[-1][1].step:
            seen.clear()
        if not seen or status.step != seen[-1][1].step or now - seen[-1][0] >= REDRAW_SECONDS:
            seen.append((now, status))
        while len(seen) > 2 and seen[1][1].step <= status.step - self.STEPS and now - seen[1][0] > self.SECONDS:
            seen.popleft()

    def completions_per_second(self) -> float:
        """Completions a second over the moments kept; 0.0 if nothing was finished."""
        if len(self._seen) < 2:
            return 0.0
        (then, before), (now, status) = self._seen[0], self._seen[-1]
        return max(0.0, (status.completions - before.completions) / (now - then)) if now > then else 0.0

    def seconds_left(self) -> float | None:
        """Seconds to the end of the budget, whichever of steps and hours ends first; None while neither has moved."""
        if len(self._seen) < 2:
            return None
        (then, before), (now, status) = self._seen[0], self._seen[-1]
        ways: list[tuple[float, float]] = [(status.steps - status.step, status.step - before.step)]
        if status.hours is not None:
            ways.append((status.hours - status.compute, status.compute - before.compute))
        left = [max(0.0, rest) / done * (now - then) for rest, done in ways if done > 0]
        return min(left, default=None)


class Progress:
    """Show a run on a terminal (bars, redrawn twice a second) or in a log (a line now and then).

    Args:
        stream: where to write; standard error by default.
        terminal: whether `stream` can redraw lines; asked of the stream by default.
        clock: seconds on a clock that only goes forward.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = stream or sys.stderr
        if terminal is None:
            terminal = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._pace, self._rates, self._clock = Pace(), PassRates(), clock
        self._shown = self._began = clock()
        self._screen: _Screen = _Terminal(stream) if terminal else _Log(stream)
        self.tell: Callable[[str], None] = lambda line: None
        """Receiver of lines about the progress of a piece of work, such as `status.json`'s."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._screen.say(plain_line(line))

    @contextmanager
    def work(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """Show progress before the run's first step.

        Args:
            name: what it is, such as SFT.
            total: how many units it has.
            unit: what is counted, in the plural.

        Yields:
            A function to call with the number of units done, and a note if there is one.
        """
        began = self._began = self._clock()

        def advance(done: int, note: str = "") -> None:
            now = self._clock()
            self.tell(f"{name}, {done} of {total} {unit} done")
            left = (now - began) / done * (total - done) if done else None
            parts = [note, "" if left is None else f"{duration(left)} left"]
            if self._due(now):
                self._screen.show([_Bar(name, done, total, unit, plain_line(_join(parts)))], [])

        yield advance
        self._screen.clear()

    def evaluated(self, records: Sequence[dict[str, Any]]) -> None:
        """Print an evaluation, one task beside the other.

        Args:
            records: its lines of `evals.jsonl`.
        """
        for record in records:
            self._rates.add(record)
        rates = "   ".join(f"{r['task']} {r['pass_rate']:.3f} ± {r['stderr']:.3f}" for r in records)
        first = records[0]
        self.say(f"step {first['step']:4d}   {first['compute']:.4f} {first['compute_unit']}   {rates}")

    def show(self, status: Status) -> None:
        """Record the run's state, and redraw if it is time."""
        now = self._clock()
        self._pace.note(now, status)
        if not self._due(now):
            return
        left, speed = self._pace.seconds_left(), self._pace.completions_per_second()
        budget = f" of {status.hours:g}" if status.hours is not None else ""
        facts = [
            "" if left is None else f"{duration(left)} left",
            f"{status.compute:.4f}{budget} {status.unit}",
            f"{speed:.0f} completions/s" if speed else "",
        ]
        bars = [_Bar("step", status.step, status.steps, "", _join(facts), status.fraction)]
        if status.evaluated is not None:
            bars.append(_Bar("evaluation", *status.evaluated, "completions", ""))
        self._screen.show(bars, self._rates.lines())

    def close(self) -> None:
        """Remove the bars; printed lines stay."""
        self._screen.clear()

    def _due(self, now: float) -> bool:
        """True if it is time to redraw: twice a second on a terminal; in a log ever more rarely, to five minutes."""
        every = self._screen.every
        if every > REDRAW_SECONDS:
            every = min(LONGEST_LINE_SECONDS, max(every, (now - self._began) / 20))
        if now - self._shown < every:
            return False
        self._shown = now
        return True


class PassRates:
    """Pass rates of a run's evaluations, by task."""

    def __init__(self) -> None:
        self._by_task: dict[str, list[tuple[float, float]]] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Add a line of `evals.jsonl`."""
        self._by_task.setdefault(record["task"], []).append((record["pass_rate"], record["stderr"]))

    def lines(self) -> list[tuple[str, str, str]]:
        """Task, sparkline of its pass rates, and the last of them with its standard error."""
        return [
            (plain_line(task), sparkline([rate for rate, _ in seen]), f"{seen[-1][0]:.3f} ± {seen[-1][1]:.3f}")
            for task, seen in self._by_task.items()
        ]


def sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """The last `width` values as blocks, from the lowest of them (▁) to the highest (█)."""
    values = values[-width:]
    low, high = min(values, default=0.0), max(values, default=0.0)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / (high - low) * top) if high > low else 0] for value in values)


def duration(seconds: float) -> str:
    """A duration for people, such as 45 s, 2:31, 3:05:00 or 2 d 4 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{hours // 24} d {hours % 24} h"


def _join(parts: Sequence[str]) -> str:
    return " · ".join(filter(None, parts))


@dataclass(frozen=True)
class _Bar:
    name: str
    done: int
    total: int
    unit: str
    facts: str
    fraction: float | None = None

    @property
    def count(self) -> str:
        return f"{self.done}/{self.total} {self.unit}".rstrip()


class _Screen(Protocol):
    every: float

    def say(self, line: str) -> None: ...

    def show(self, bars: Sequence[_Bar], rates: Sequence[tuple[str, str, str]]) -> None: ...

    def clear(self) -> None: ...


class _Log:
    """Plain lines, for a file or a pipe."""

    every = LINE_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def show(self, bars: Sequence[_Bar], rates: Sequence[tuple[str, str, str]]) -> None:
        parts = [_join([f"{bar.name} {bar.count}", bar.facts]) for bar in bars]
        self.say(_join([*parts, *(f"{task} {last}" for task, _, last in rates)]))

    def clear(self) -> None: ...


class _Terminal:
    """Bars that are redrawn in place below the lines that stay."""

    every = REDRAW_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, force_terminal=True)
        self._live: Live | None = None

    def say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def show(self, bars: Sequence[_Bar], rates: Sequence[tuple[str, str, str]]) -> None:
        drawn: list[RenderableType] = [_draw_bars(bars)]
        if rates:
            drawn.append(_draw_rates(rates))
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(*drawn), refresh=True)

    def clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _draw_bars(bars: Sequence[_Bar]) -> Table:
    table = Table.grid(padding=(0, 2))
    for bar in bars:
        full = bar.done / bar.total if bar.total else 1.0
        table.add_row(
            Text(bar.name),
            ProgressBar(
                total=1.0,
                completed=full if bar.fraction is None else bar.fraction,
                width=BAR_WIDTH,
                complete_style="cyan",
                finished_style="green",
            ),
            Text(bar.count),
            Text(bar.facts, style="dim", overflow="ellipsis", no_wrap=True),
        )
    return table


def _draw_rates(rates: Sequence[tuple[str, str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for task, line, last in rates:
        table.add_row(Text(task), Text(line, style="cyan"), Text(last))
    return table
