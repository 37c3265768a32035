"""Time that a run takes to start, by stages, and its processor time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scalelab.store.folder import RunFolder


class StartUp:
    """Wall-clock seconds from the start of this process to the loop, by stages."""

    def __init__(self) -> None:
        import psutil

        self._last, self._before = psutil.Process().create_time(), cpu_seconds()
        self.seconds: dict[str, float] = {}
        """Seconds of each stage."""

    def done(self, stage: str) -> None:
        """End a stage, which began where the one before it ended."""
        now = time.time()
        self.seconds[stage] = max(now - self._last, 0.0)
        self._last = now

    @property
    def line(self) -> str:
        """The stages in words."""
        stages = ", ".join(f"{seconds:.1f} {stage}" for stage, seconds in self.seconds.items())
        return f"RL begins {sum(self.seconds.values()):.1f} s after the start: {stages}"

    @contextmanager
    def counting(self, folder: RunFolder) -> Iterator[None]:
        """Record the stages, and processor time before and during RL, added to that of earlier processes of the run."""
        ready = cpu_seconds()
        folder.describe(start_up_seconds=self.seconds)
        earlier = folder.manifest.get("cpu_seconds", {"before_rl": 0.0, "rl": 0.0})
        try:
            yield
        finally:
            spent = {"before_rl": ready - self._before, "rl": cpu_seconds() - ready}
            folder.describe(cpu_seconds={part: earlier.get(part, 0.0) + seconds for part, seconds in spent.items()})


def cpu_seconds() -> float:
    """CPU time so far of this process and of all below it on this machine, ended ones that were waited for included."""
    import psutil

    this, total = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended since it was listed
            spent = process.cpu_times()
            total += spent.user + spent.system + spent.children_user + spent.children_system
    return total
