"""Time that a run takes to start, by stages, and its processor time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scalelab.session.processor_time import seconds_by_role
from scalelab.store.folder import RunFolder


class StartUp:
    """Wall-clock seconds from the start of this process to the loop, by stages."""

    def __init__(self) -> None:
        import psutil

        self._last, self._before = psutil.Process().create_time(), sum(seconds_by_role().values())
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
        """Record the stages, and processor time before and during RL and, during it, by role.

        That of earlier processes of the run is added.
        """
        ready = seconds_by_role()
        folder.describe(start_up_seconds=self.seconds)
        try:
            yield
        finally:
            now = seconds_by_role()
            by_role = {role: seconds - ready.get(role, 0.0) for role, seconds in now.items()}
            spent = {"before_rl": sum(ready.values()) - self._before, "rl": sum(by_role.values())}
            folder.describe(
                cpu_seconds=_with_earlier(spent, folder.manifest.get("cpu_seconds", {})),
                cpu_seconds_by_role=_with_earlier(by_role, folder.manifest.get("cpu_seconds_by_role", {})),
            )


def _with_earlier(spent: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """Processor time of this process and of the run's earlier ones."""
    return {part: earlier.get(part, 0.0) + spent.get(part, 0.0) for part in {**earlier, **spent}}
