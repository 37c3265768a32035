"""Faults of a run (lost generators and trainers): announce each, record it, and count it against the limit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from scalelab.errors import LabError
from scalelab.run.ports import TrainerLostError
from scalelab.run.settings import Cluster

PAUSES = (1.0, 5.0, 20.0, 60.0)
"""Seconds between two attempts to replace a trainer, the last for all that follow."""

Role = Literal["generator", "trainer"]

TOGETHER_SECONDS = 30.0
"""Time in which faults of different generators count as one, since a lost node ends all of its engines."""


class Faults:
    """The faults of one run.

    Args:
        cluster: how often each role may be replaced.
        write: takes a line of `faults.jsonl`.
        say: takes a line for people.
    """

    def __init__(self, cluster: Cluster, write: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> None:
        self._limits: dict[Role, int] = {"generator": cluster.generator_restarts, "trainer": cluster.trainer_restarts}
        self._write, self._say = write, say
        self._lost: Counter[Role] = Counter()
        self._together: tuple[float, set[str]] = (-TOGETHER_SECONDS, set())
        self._missing: set[str] = set()
        self._since: dict[str, float] = {}

    def lost(self, role: Role, name: str, error: LabError, **facts: Any) -> None:
        """Record the fault of an actor that is about to be replaced.

        Args:
            role: of the actor.
            name: of the actor, such as `generator 1`.
            error: how the fault was noticed.
            facts: further entries of the line: requests that were queued again, steps that are undone.

        Raises:
            LabError: the role has been replaced as often as it may be.
        """
        self._lost[role] += role != "generator" or self._is_new(name)
        self._since.setdefault(name, time.monotonic())
        self._write({"time": time.time(), "event": "lost", "role": role, "name": name, "error": str(error), **facts})
        limit = self._limits[role]
        if self._lost[role] > limit:
            raise LabError(
                f"{error}; {limit} times the {role} was replaced already, and Cluster.{role}_restarts allows no more: "
                "look at its log under /tmp/ray/session_latest/logs"
            )
        self._say(f"{error}; replacing it ({self._lost[role]} of {limit})")

    def _is_new(self, name: str) -> bool:
        """False if the fault counts with earlier ones: other generators were lost just before, and not this one."""
        began, names = self._together
        if time.monotonic() - began < TOGETHER_SECONDS and name not in names:
            names.add(name)
            return False
        self._together = time.monotonic(), {name}
        return True

    def missing(self, name: str, error: LabError, left: int) -> None:
        """Record once that a generator cannot be replaced yet, and that the run goes on with the others."""
        if name not in self._missing:
            self._missing.add(name)
            self._since.setdefault(name, time.monotonic())
            self._write(
                {"time": time.time(), "event": "missing", "role": "generator", "name": name, "error": str(error)}
            )
            self._say(f"{error}; the run goes on with {left} of them until there is a device for it")

    def overdue(self, name: str, error: LabError) -> None:
        """Record that the node of a lost generator still runs and holds its devices."""
        self._write({"time": time.time(), "event": "overdue", "role": "generator", "name": name, "error": str(error)})
        self._say(f"{error}; its devices cannot be used until then: end the node")

    def unsent(self, problem: str) -> None:
        """Record that weights did not arrive by broadcast, and that engines take them from files."""
        self._write({"time": time.time(), "event": "unsent", "role": "trainer", "name": "weights", "error": problem})
        self._say(f"{problem}; engines that lack the new weights take them from files this time")

    def lost_records(self, lost: int, of: int) -> None:
        """Record that records of experts did not come: the trainer's own router chooses for those completions."""
        problem = f"{lost} of the {of} records of experts of a step did not arrive: their node is gone, or too slow"
        self._write({"time": time.time(), "event": "unreplayed", "role": "trainer", "name": "step", "error": problem})
        self._say(f"{problem}; the trainer's own router chooses for these completions")

    def lost_completions(self, lost: int, of: int) -> None:
        """Record that completions of a step did not come to the trainer."""
        problem = f"{lost} of the {of} completions of a step did not arrive: their node is gone, or too slow"
        self._write({"time": time.time(), "event": "untrained", "role": "trainer", "name": "step", "error": problem})
        self._say(f"{problem}; {'they are generated again' if lost == of else 'the step goes on without them'}")

    def recovered(self, role: Role, name: str) -> None:
        """Record that a lost actor was replaced, with the seconds since; do nothing if it was not lost."""
        since = self._since.pop(name, None)
        if since is None:
            return
        seconds = time.monotonic() - since
        self._missing.discard(name)
        self._write({"time": time.time(), "event": "recovered", "role": role, "name": name, "seconds": seconds})
        self._say(f"{name} is back after {seconds:.0f} s")

    def trainer_attempts(self, lost: TrainerLostError | None = None, **facts: Any) -> Iterator[TrainerAttempt]:
        """Attempts of something that needs the trainer, until it is not lost over one.

        Whoever asks waits each attempt's `pause`, and makes it inside of it.

        Args:
            lost: how the trainer was lost before the first attempt; None if it was not.
            facts: further entries of the line on that.

        Raises:
            LabError: the trainer was replaced as often as it may be.
        """
        pauses = (0.0, *PAUSES)
        for number in count():
            if lost is not None:
                self.lost("trainer", "the trainer", lost, **facts)
            attempt = TrainerAttempt(again=lost is not None, pause=pauses[min(number, len(PAUSES))])
            yield attempt
            if attempt.error is None:
                break
            lost, facts = attempt.error, {}
        self.recovered("trainer", "the trainer")

    def retry_with_new_trainer(self, attempt: Callable[[], None], replace: Callable[[], None]) -> None:
        """Call a function of the trainer while nothing else goes on; if the trainer is lost, replace it and call again.

        Args:
            attempt: the function; goes on from what an earlier call has left.
            replace: starts another trainer.

        Raises:
            LabError: the trainer was replaced as often as it may be, or something else is wrong.
        """
        for one in self.trainer_attempts():
            time.sleep(one.pause)
            with one:
                if one.again:
                    replace()
                attempt()


@dataclass
class TrainerAttempt:
    """One attempt of something that needs the trainer: a context that ends without an error if the trainer is lost.

    Attributes:
        again: the trainer was lost, and is to be replaced first.
        pause: seconds to wait before.
        error: how the trainer was lost over it; None if it was not.
    """

    again: bool
    pause: float
    error: TrainerLostError | None = None

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Take the error of a trainer that was lost; others go on their way."""
        self.error = error if isinstance(error, TrainerLostError) else None
        return self.error is not None
