"""The books of a run: all state in a checkpoint beside the trainer's own.

Plain data and arithmetic: no clock, no actors, no coroutines. The loop writes here; the journal and the conditions that
coroutines wait for read here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Generic, NotRequired, TypedDict, cast

from scalelab.errors import LabError
from scalelab.recipe.types import AnyRollout, Rollout, is_held
from scalelab.run.config import Run
from scalelab.run.evaluation_sets import HELD_OUT
from scalelab.run.ports import PromptT, RolloutsT
from scalelab.schedule.schedule import Schedule, ScheduleState
from scalelab.shards import BRIEF_SECONDS, with_contents
from scalelab.store.waiting_rollouts import read_rollouts, write_rollouts
from tasks.sampler import MixtureSampler
from tasks.types import Prompt

ROLES = ("generator", "trainer", "evaluation", "faults")
"""Roles that device-hours are charged to."""


@dataclass
class Ledger:
    """Device-hours since RL began, waiting included.

    Every second of wall time is charged for every device held. A generator's second is charged to `evaluation` for
    the share of its work that was evaluation, a trainer's second if the trainer stood idle while an evaluation ran;
    all else is charged to the role. `compute`, the x-axis, leaves `evaluation` out: a curve must not depend on how
    closely it was looked at (ScaleRL §2 counts training compute). What a fault cost goes to `faults`: the devices of
    lost actors until they are back, and all work that a return to a checkpoint undid. It is part of `compute`, since
    the devices were held, and `undisturbed` leaves it out.

    Attributes:
        generators: devices that generators hold; one that they share with a trainer rank counts as half of each.
        trainers: devices that trainer ranks hold, likewise.
        hours: by role.
    """

    generators: float
    trainers: float
    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))

    @property
    def compute(self) -> float:
        """Generator and trainer device-hours so far, with those that faults cost."""
        return self.undisturbed + self.hours["faults"]

    @property
    def undisturbed(self) -> float:
        """Generator and trainer device-hours so far, without those that faults cost."""
        return self.hours["generator"] + self.hours["trainer"]

    def advance(
        self, seconds: float, *, evaluation_share: float, trainer_idle: bool, lost: float = 0.0, broken: bool = False
    ) -> float:
        """Add `seconds` of wall time to the totals.

        Args:
            seconds: wall time since the last call.
            evaluation_share: part of the generators' work in that time that was evaluation, in [0, 1].
            trainer_idle: whether the trainer had nothing to do.
            lost: device-seconds for which generators were lost and that are not charged yet.
            broken: whether the whole run stood still for a fault.

        Returns:
            The device-seconds of `lost` that are charged now: never more than generators had in `seconds`.
        """
        if seconds < 0 or not 0 <= evaluation_share <= 1:
            raise ValueError(f"cannot charge {seconds} s with an evaluation share of {evaluation_share}")
        hours = seconds / 3600
        if broken:
            self.hours["faults"] += hours * (self.generators + self.trainers)
            return 0.0
        gone = min(max(lost / 3600, 0.0), hours * self.generators)
        self.hours["faults"] += gone
        at_work = hours * self.generators - gone
        self.hours["generator"] += at_work * (1 - evaluation_share)
        self.hours["evaluation"] += at_work * evaluation_share
        self.hours["evaluation" if trainer_idle and evaluation_share else "trainer"] += hours * self.trainers
        return 3600 * gone

    def at_least(self, hours: Mapping[str, float]) -> None:
        """Raise the totals to the recorded ones, which include the compute of undone steps."""
        self.hours = {role: max(spent, hours.get(role, 0.0)) for role, spent in self.hours.items()}

    def go_back(self, checkpoint: Mapping[str, float]) -> None:
        """Count as lost to faults what was spent since a checkpoint, but for evaluations, which are kept.

        Args:
            checkpoint: hours by role when it was taken.
        """
        for role in ("generator", "trainer"):
            since = max(0.0, self.hours[role] - checkpoint.get(role, 0.0))
            self.hours["faults"] += since
            self.hours[role] -= since

    def state_dict(self) -> dict[str, float]:
        """Hours by role."""
        return dict(self.hours)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from `state_dict`."""
        self.hours = {role: float(state.get(role, 0.0)) for role in ROLES}


@dataclass
class DrawnGroup(Generic[PromptT, RolloutsT]):
    """A drawn prompt and, once they are all graded, its completions."""

    prompt: PromptT
    rollouts: RolloutsT | None = None


class StoredPrompt(TypedDict):
    """A prompt in a checkpoint; fields as in `Prompt`."""

    id: str
    task: str
    text: str
    gold: object
    meta: dict[str, object]
    chat: list[dict[str, str]]


class StoredGroup(TypedDict):
    """A group in a checkpoint: its prompt, and the number of its completions that are graded."""

    prompt: StoredPrompt
    rollouts: int


class BooksState(TypedDict):
    """The books in a checkpoint; plain JSON."""

    schedule: ScheduleState
    sampler: dict[str, object]
    ledger: dict[str, float]
    drawn: int
    dropped: dict[str, int]
    measured: int
    """Version of the last evaluation. This key and the next stay as they are: older checkpoints have them alone."""
    measure_from: int | None
    evaluated: NotRequired[dict[str, int]]
    """Version of the last evaluation on each set."""
    due: NotRequired[dict[str, int]]
    """Sets that are to be evaluated, and the first version that will do."""
    step_hours: NotRequired[float]
    """Checkpoints before 2026-11-24 have none."""
    counts: list[int]
    groups: dict[str, StoredGroup]
    rollouts: str | None
    """File of the rollouts that wait for a step."""
    unrecorded: NotRequired[int]
    """Rollouts whose records of experts lay elsewhere, and are not in that file."""


@dataclass
class Books(Generic[PromptT, RolloutsT]):
    """Counts of a run: groups drawn, finished and trained on, evaluations, compute."""

    schedule: Schedule
    """Schedule of the run: groups in flight, and who waits for whom."""
    sampler: Iterator[PromptT]
    """Prompts; they end when every one is retired."""
    ledger: Ledger
    """Device-hours by role."""
    groups: dict[str, DrawnGroup[PromptT, RolloutsT]] = field(default_factory=dict)
    """Groups that are started and not yet trained on or dropped, by name."""
    drawn: int = 0
    """Groups started since the beginning."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Groups left out of training and made up for by others, by reason."""
    evaluated_on: dict[str, int] = field(default_factory=dict)
    """Version of the last evaluation on each set that is written down."""
    due: dict[str, int] = field(default_factory=dict)
    """Sets that are to be evaluated: on the first weights that are at least this version."""
    step_hours: float = 0.0
    """Compute when the last step was booked, in device-hours."""
    completions: int = 0
    """Completions trained on."""
    tokens: int = 0
    """Tokens of prompts and completions trained on."""
    generated: int = 0
    """Completion tokens of all groups trained on or dropped."""

    @property
    def version(self) -> int:
        """Optimiser steps taken: the trainer's policy version."""
        return self.schedule.trainer_version

    @property
    def evaluated(self) -> int:
        """Version of the last evaluation that is written down; −1 before the first."""
        return max(self.evaluated_on.values(), default=-1)

    @property
    def evaluate_from(self) -> int | None:
        """The next evaluation is of the first weights that are at least this version; None: none is due."""
        return max(self.due.values(), default=None)

    def draw(self, generator_version: int) -> str | None:
        """Start a group with the next prompt, and return its name; None if no prompt is left."""
        prompt = next(self.sampler, None)
        if prompt is None:
            return None
        name = f"group{self.drawn}"
        self.groups[name] = DrawnGroup(prompt)
        self.schedule.book_start(name, generator_version)
        self.drawn += 1
        return name

    def finish(self, name: str, rollouts: RolloutsT, pass_rate: float | None, drop_reason: str | None) -> None:
        """Book a group whose completions are all graded.

        Args:
            name: the group.
            rollouts: its graded completions.
            pass_rate: what the sampler learns of the prompt; None if nothing could be graded.
            drop_reason: why another group takes its place; None if it waits for its step.
        """
        if pass_rate is not None:
            self.observe(self.groups[name].prompt, pass_rate)
        if drop_reason is None:
            self.groups[name].rollouts = rollouts
            self.schedule.book_finish(name)
        else:
            self.schedule.book_drop(name)
            self.dropped[drop_reason] += 1
            self.generated += self.tokens_of(rollouts)
            del self.groups[name]

    def take(self, names: Sequence[str]) -> list[RolloutsT]:
        """The rollouts of the groups that an optimiser step is about to train on."""
        taken = [self.groups.pop(name).rollouts for name in names]
        return [rollouts for rollouts in taken if rollouts is not None]  # a batch has finished groups alone

    def take_again(self, lost: Mapping[str, PromptT]) -> None:
        """Book groups as in flight again that were taken for a step, and whose completions are lost.

        Args:
            lost: their prompts.
        """
        for name, prompt in lost.items():
            self.groups[name] = DrawnGroup(prompt)
            self.schedule.book_again(name)

    def observe(self, prompt: PromptT, pass_rate: float) -> None:
        """Let the sampler learn a prompt's pass rate; there is nothing to learn where lengths are drawn."""

    def tokens_of(self, rollouts: RolloutsT) -> int:
        """Completion tokens of a group that is dropped; none is where lengths are drawn."""
        return 0

    def add_due(self, version: int, sets: Iterable[str]) -> None:
        """Note sets to be evaluated on weights of this version or later ones, unless they have been."""
        self.due |= {name: version for name in sets if self.evaluated_on.get(name, -1) < version}

    def add_evaluated(self, sets: Mapping[str, int]) -> None:
        """Note the versions of evaluations that are written down, by set; what they cover is not due any more."""
        for name, version in sets.items():
            self.evaluated_on[name] = max(version, self.evaluated_on.get(name, -1))
        self.due = {name: since for name, since in self.due.items() if since > self.evaluated_on.get(name, -1)}


@dataclass(frozen=True)
class Capture:
    """The books as they were at one moment, for a checkpoint.

    Attributes:
        state: all but the rollouts that wait for a step.
        waiting: those, by their groups' names.
    """

    state: BooksState
    waiting: dict[str, list[AnyRollout]]

    def written(self, folder: Path) -> BooksState:
        """The books as plain JSON, with rollouts that wait for a step in a file in `folder`; takes time.

        A group of which content is lost counts as in flight.
        """
        there = iter(with_contents([one for group in self.waiting.values() for one in group], BRIEF_SECONDS))
        found = {name: [next(there) for _ in group] for name, group in self.waiting.items()}
        kept = {name: [one for one in group if one] for name, group in found.items() if None not in group}
        rollouts = [rollout for group in kept.values() for rollout in group]
        groups = {
            name: {**stored, "rollouts": len(kept.get(name, ()))} for name, stored in self.state["groups"].items()
        }
        return {
            **self.state,
            "groups": cast("dict[str, StoredGroup]", groups),
            "rollouts": write_rollouts(folder, rollouts) if rollouts else None,
            "unrecorded": sum(is_held(rollout.routed_TLK) for rollout in rollouts),
        }


@dataclass
class RunBooks(Books[Prompt, list[AnyRollout]]):
    """Books of prompts and rollouts: all state in a checkpoint beside the trainer's own."""

    sampler: MixtureSampler

    def observe(self, prompt: Prompt, pass_rate: float) -> None:
        """Let the sampler learn a prompt's pass rate."""
        self.sampler.observe(prompt.id, pass_rate)

    def tokens_of(self, rollouts: list[AnyRollout]) -> int:
        """Completion tokens of a group."""
        return sum(rollout.tokens for rollout in rollouts)

    def capture(self) -> Capture:
        """The books as they are now.

        Groups in flight are kept by name and prompt: a resumed run generates them again. So is an evaluation.
        """
        state: BooksState = {
            "schedule": self.schedule.state_dict(),
            "sampler": self.sampler.state_dict(),
            "ledger": self.ledger.state_dict(),
            "drawn": self.drawn,
            "dropped": dict(self.dropped),
            "measured": self.evaluated,
            "measure_from": self.evaluate_from,
            "evaluated": dict(self.evaluated_on),
            "due": dict(self.due),
            "step_hours": self.step_hours,
            "counts": [self.completions, self.tokens, self.generated],
            "groups": {
                name: {"prompt": cast("StoredPrompt", asdict(group.prompt)), "rollouts": 0}
                for name, group in self.groups.items()
            },
            "rollouts": None,
            "unrecorded": 0,
        }
        return Capture(state, {name: one.rollouts for name, one in self.groups.items() if one.rollouts is not None})

    def restore(self, state: BooksState, folder: Path, say: Callable[[str], None]) -> None:
        """Return to a state that a capture wrote.

        Rollouts that are missing or damaged are said, and their groups generated again. The ledger does not go back:
        what was spent is spent.
        """
        kept: list[Rollout] = []
        if state["rollouts"]:
            try:
                kept = read_rollouts(folder, state["rollouts"])
            except LabError as error:
                say(str(error))
        if kept and (count := state.get("unrecorded", 0)):
            say(f"{count} completions waited for a step; for them the trainer's own router chooses the experts")
        rollouts, self.groups = iter(kept), {}
        for name, stored in state["groups"].items():
            one = stored["prompt"]
            prompt = Prompt(one["id"], one["task"], one["text"], one["gold"], one["meta"], tuple(one["chat"]))
            group: DrawnGroup[Prompt, list[AnyRollout]] = DrawnGroup(prompt)
            if kept and stored["rollouts"]:
                group.rollouts = [next(rollouts) for _ in range(stored["rollouts"])]
            self.groups[name] = group
        groups = [
            (name, number, version, finished and self.groups[name].rollouts is not None)
            for name, number, version, finished in state["schedule"]["groups"]
        ]
        self.schedule.load_state_dict({**state["schedule"], "groups": groups})
        self.sampler.load_state_dict(state["sampler"])
        self.drawn, self.dropped = state["drawn"], Counter(state["dropped"])
        self.evaluated_on = dict(state.get("evaluated", {HELD_OUT: state["measured"]}))
        since = state["measure_from"]
        self.due = dict(state.get("due", {} if since is None else {HELD_OUT: since}))
        self.step_hours = state.get("step_hours", 0.0)
        self.completions, self.tokens, self.generated = state["counts"]
        self.ledger.at_least(state["ledger"])


def new_books(run: Run) -> RunBooks:
    """The books of a run that has not begun."""
    weights = dict(zip((t.name for t in run.tasks), run.task_weights, strict=True)) if run.task_weights else None
    recipe = run.recipe
    schedule = run.schedule.start(recipe.prompts_at(0), run.budget.steps)
    if recipe.prompts_at_start is not None:
        schedule.growth = recipe.prompts_at
    curriculum = recipe.curriculum or MixtureSampler
    return RunBooks(
        schedule=schedule,
        sampler=curriculum(run.tasks, weights, run.seed, recipe.retire_at),
        ledger=Ledger(run.generator_devices * run.cluster.share, run.cluster.trainers * run.cluster.share),
    )
