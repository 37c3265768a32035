"""The bookkeeping that all schedules share, and the decisions in which they differ, with the proofs of their bounds.

A group is started, finished, and trained on, or dropped on the way. The books hold the groups that were started and are
not yet trained on or dropped; a schedule looks at them, and at nothing else, to say what may happen next. No clock, no
actors, no tensors. A group whose completions were lost is generated again under its old entry: its tokens only become
newer, so whatever bound was certain to be kept still is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as checked

from moe.checked import CHECKED


class ScheduleState(TypedDict):
    """A schedule in a checkpoint: its steps, the number of groups started, and those that are not settled."""

    trainer_version: int
    drawn: int
    groups: list[tuple[str, int, int, bool]]
    """Name, number, version at its start, and whether it is finished."""


@dataclass
class OutstandingGroup:
    """A group that is started and not yet trained on or dropped."""

    number: int
    """Place in the order of drawing."""
    version: int
    """Oldest policy version that any of its tokens can be of."""
    finished: bool = False


class SchedulePolicy(Protocol):
    """Frozen settings that make the schedule of one run; bound as `Run.schedule`."""

    def start(self, groups_per_step: int, steps: int) -> Schedule:
        """Make the schedule of a run of `steps` steps that trains on `groups_per_step` groups a step."""
        ...


@dataclass
class Schedule(ABC):
    """The decisions of one run: which groups start, when to train, when to publish."""

    groups_per_step: int
    """P: groups that the next optimiser step trains on."""
    steps: int
    """Optimiser steps that the run may take in all; no group is started that could only be trained on after them."""
    trainer_version: int = 0
    """Optimiser steps taken."""
    _entries: dict[str, OutstandingGroup] = field(default_factory=dict)
    _outstanding: Counter[int] = field(default_factory=Counter)
    """Number of outstanding groups by version."""
    _finished: dict[int, set[str]] = field(default_factory=dict)
    """Names of the finished groups by version."""
    _waiting: int = 0
    _drawn: int = 0
    growth: Callable[[int], int] | None = None
    """P of every step, counted from 0, which never falls; None where it stays. A larger P makes every bound wider."""

    # The decisions.

    @abstractmethod
    def may_start(self, generator_version: int) -> int:
        """Number of groups that a generator holding `generator_version` may start now."""

    @abstractmethod
    def batch(self) -> list[str] | None:
        """The groups of the next step in the order to train on them, or None while the trainer has to wait."""

    @abstractmethod
    def may_publish(self) -> bool:
        """True if the generators may be given the newest weights now."""

    # The books.

    @property
    def outstanding(self) -> int:
        """Groups started and neither trained on nor dropped."""
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """Groups finished and neither trained on nor dropped."""
        return self._waiting

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Groups started and not finished, in the order of drawing."""
        return tuple(name for name, entry in self._entries.items() if not entry.finished)

    @property
    def generating(self) -> int:
        """Number of groups in flight."""
        return len(self._entries) - self._waiting

    def book_start(self, group: str, generator_version: int) -> None:
        """Book a group that is being generated from `generator_version` on."""
        if group in self._entries:
            raise ValueError(f"group {group} is outstanding already")
        self._add(group, OutstandingGroup(self._drawn, generator_version))

    def book_finish(self, group: str) -> None:
        """Book a group whose completions are all graded."""
        entry = self._entry(group)
        if entry.finished:
            raise ValueError(f"group {group} has finished already")
        entry.finished = True
        self._finished.setdefault(entry.version, set()).add(group)
        self._waiting += 1

    def book_again(self, group: str) -> None:
        """Book a finished group whose completions are lost: it is generated again, in its old place."""
        entry = self._entry(group)
        if not entry.finished:
            raise ValueError(f"group {group} has not finished")
        self._waits_no_more(group, entry)
        entry.finished = False

    def book_drop(self, group: str) -> None:
        """Book a group that will not be trained on; another may take its place."""
        self._entry(group)
        self._remove(group)

    def book_step(self, groups: list[str]) -> None:
        """Book one optimiser step on `groups`, which have all finished."""
        for group in groups:
            if not self._entry(group).finished:
                raise ValueError(f"group {group} has not finished")
        for group in groups:
            self._remove(group)
        self._go_to(self.trainer_version + 1)

    def _go_to(self, version: int) -> None:
        self.trainer_version = version
        if self.growth is not None:
            self.groups_per_step = self.growth(version)

    def state_dict(self) -> ScheduleState:
        """State that a resumed run needs (JSON-able)."""
        groups = [
            (name, entry.number, entry.version, entry.finished)
            for name, entry in sorted(self._entries.items(), key=lambda item: item[1].number)
        ]
        return {"trainer_version": self.trainer_version, "drawn": self._drawn, "groups": groups}

    def load_state_dict(self, state: ScheduleState) -> None:
        """Continue from `state_dict`, perhaps with another number of steps to take."""
        self._go_to(state["trainer_version"])
        self._entries, self._outstanding, self._finished, self._waiting = {}, Counter(), {}, 0
        for name, number, version, finished in state["groups"]:
            self._add(name, OutstandingGroup(number, version))
            if finished:
                self.book_finish(name)
        self._drawn = state["drawn"]

    def _entry(self, group: str) -> OutstandingGroup:
        if group not in self._entries:
            raise ValueError(f"group {group} was never started, or is settled")
        return self._entries[group]

    def _add(self, group: str, entry: OutstandingGroup) -> None:
        self._entries[group] = entry
        self._outstanding[entry.version] += 1
        self._drawn = max(self._drawn, entry.number + 1)

    def _remove(self, group: str) -> None:
        entry = self._entries.pop(group)
        self._outstanding[entry.version] -= 1
        if not self._outstanding[entry.version]:
            del self._outstanding[entry.version]
        if entry.finished:
            self._waits_no_more(group, entry)

    def _waits_no_more(self, group: str, entry: OutstandingGroup) -> None:
        self._finished[entry.version].remove(group)
        self._waiting -= 1
        if not self._finished[entry.version]:
            del self._finished[entry.version]

    def _first_finished(self) -> list[str]:
        """P finished groups, those of the oldest weights first, and of these in the order of drawing."""
        chosen: list[str] = []
        for version in sorted(self._finished):
            names = sorted(self._finished[version], key=lambda name: self._entries[name].number)
            chosen += names[: self.groups_per_step - len(chosen)]
            if len(chosen) == self.groups_per_step:
                break
        return chosen


@checked(frozen=True, config=CHECKED)
class PipelineRL:
    """Generators stream; every step's weights go to them at once, in the middle of their completions (ScaleRL §3.1)."""

    k: NonNegativeInt = 8
    """Largest staleness trained on: trainer version − oldest policy version in a rollout. 0 is synchronous."""

    def start(self, groups_per_step: int, steps: int) -> PipelineSchedule:
        """The schedule of one run of `steps` steps that trains on `groups_per_step` groups a step."""
        return PipelineSchedule(groups_per_step, steps, k=self.k)


@dataclass
class PipelineSchedule(Schedule):
    """PipelineRL-k: admission by deadline, so that nothing trained on is more than k versions old.

    The bound is kept by *admission*: a group is started only if it is certain to be trained on in time. Nothing is ever
    discarded for age, which would starve slow, hard prompts (ScaleRL §3.1; PipelineRL, arXiv 2509.19128).

    A group started under generator version v may be trained on while the trainer's version t is at most v + k: that is
    its *deadline*. A step consumes exactly P groups. The groups outstanding (generating, being graded, or waiting) can
    all meet their deadlines if and only if, for every d,

        number of outstanding groups with deadline ≤ d   ≤   P · (d − t + 1)                               (feasible)

    because P · (d − t + 1) is what the steps t … d consume. Every move keeps this inequality: `may_start` refuses a
    group that would break it; `batch` takes the finished groups with the earliest deadlines and waits for more of them
    to finish if the inequality would not survive the step; `book_drop` only takes groups away.

    It cannot deadlock. With nothing in flight every outstanding group is finished. If they are P or more, the step on
    the earliest P keeps (feasible), so `batch` gives them. If they are fewer and steps are left, a generator with the
    weights t may start one, since t + k is the last deadline of all and P · (k + 1) > P − 1; and the weights may always
    be published.
    """

    k: int = 0

    def may_start(self, generator_version: int) -> int:
        """Number of groups that keep (feasible), and that can still be trained on before the run ends."""
        room = self.groups_per_step * (self.steps - self.trainer_version) - self.outstanding
        due = sum(count for version, count in self._outstanding.items() if version < generator_version)
        for version in range(generator_version, max([generator_version, *self._outstanding]) + 1):
            due += self._outstanding[version]
            room = min(room, self.groups_per_step * (version + self.k - self.trainer_version + 1) - due)
        return max(0, room)

    def batch(self) -> list[str] | None:
        """The finished groups with the earliest deadlines, if the rest can still meet theirs afterwards."""
        wanted, due = self.groups_per_step, 0
        if self.waiting < wanted:
            return None
        for version in sorted(self._outstanding):
            taken = min(wanted, len(self._finished.get(version, ())))
            wanted -= taken
            due += self._outstanding[version] - taken
            if due > self.groups_per_step * (version + self.k - self.trainer_version):
                return None
        return self._first_finished()

    def may_publish(self) -> bool:
        """True: completions in flight go on with the new weights."""
        return True


@dataclass(frozen=True)
class Synchronous:
    """Generate a step's groups, train on them, publish; each side waits for the other."""

    def start(self, groups_per_step: int, steps: int) -> RoundSchedule:
        """The schedule of one run of `steps` steps that trains on `groups_per_step` groups a step."""
        return RoundSchedule(groups_per_step, steps, k=1)


@checked(frozen=True, config=CHECKED)
class PPOOffPolicy:
    """Generate k steps' groups with one policy, then take the k steps, then publish (ScaleRL §3.1)."""

    k: PositiveInt = 8
    """Optimiser steps on what one policy generated; the last of them is k − 1 versions off-policy. 1 is synchronous."""

    def start(self, groups_per_step: int, steps: int) -> RoundSchedule:
        """The schedule of one run of `steps` steps that trains on `groups_per_step` groups a step."""
        return RoundSchedule(groups_per_step, steps, k=self.k)


@dataclass
class RoundSchedule(Schedule):
    """Rounds of k steps, each generated by one policy: synchronous (k = 1) and PPO-off-policy-k.

    A round is k steps: the generators make k · P groups with the weights of version r · k, all of them finish, the
    trainer takes k steps of P groups each, and the new weights are published (ScaleRL §3.1). So the staleness of the
    i-th step of a round, i = 0 … k − 1, is exactly i, and at most k − 1 in all; synchronous is k = 1. The last round of
    a run is as short as the steps that are left. Which round it is follows from the trainer's version, so there is no
    state beside the books.

    It cannot deadlock. With nothing in flight either the round's remaining groups are all there, and `batch` gives the
    next P of them; or some are missing (the round begins, or one was dropped), and then the weights may be published
    and a generator that holds them may start what is missing.
    """

    k: int = 1

    def may_start(self, generator_version: int) -> int:
        """Number of groups that the round lacks, once the generator holds its weights."""
        begin = self.trainer_version // self.k * self.k
        return 0 if generator_version < begin else max(0, self._left() - self.outstanding)

    def batch(self) -> list[str] | None:
        """The next P groups in the order of drawing, once the whole rest of the round has finished."""
        if not 0 < self._left() <= self.waiting:
            return None
        return self._first_finished()

    def may_publish(self) -> bool:
        """True if nothing is in flight and groups are to be started: a round begins, or lost one of its groups."""
        return self.generating == 0 and (self.waiting < self._left() or self.trainer_version >= self.steps)

    def _left(self) -> int:
        """Groups that the round's remaining steps train on."""
        end = min((self.trainer_version // self.k + 1) * self.k, self.steps)
        return self.groups_per_step * (end - self.trainer_version)
