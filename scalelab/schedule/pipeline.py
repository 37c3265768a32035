"""PipelineRL-k: generators stream, the trainer steps, and nothing trained on is more than k versions old.

The bound is kept by *admission*: a group is started only if it is certain to be trained on in time. Nothing is ever
discarded for age, which would starve slow, hard prompts (ScaleRL §3.1; PipelineRL, arXiv 2509.19128).

A group started under generator version v may be trained on while the trainer's version t is at most v + k: that is its
*deadline*. A step consumes exactly P groups. The groups outstanding (generating, being graded, or waiting) can all meet
their deadlines if and only if, for every d,

    number of outstanding groups with deadline ≤ d   ≤   P · (d − t + 1)                                   (feasible)

because P · (d − t + 1) is what the steps t … d consume. Every move keeps this inequality: `may_start` refuses a group
that would break it; `batch` takes the finished groups with the earliest deadlines and waits for more of them to finish
if the inequality would not survive the step; `book_drop` only takes groups away.

It cannot deadlock. With nothing in flight every outstanding group is finished. If they are P or more, the step on the
earliest P keeps (feasible), so `batch` gives them. If they are fewer and steps are left, a generator with the weights t
may start one, since t + k is the last deadline of all and P · (k + 1) > P − 1; and the weights may always be published.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass as checked

from moe.checked import CHECKED
from scalelab.schedule.schedule import Schedule


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
    """Admission by deadline."""

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
