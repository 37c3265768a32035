"""Faults of simulated runs, and those that a seed draws for each life of its run."""

from __future__ import annotations

import random
from dataclasses import dataclass

LIVES = 3
"""Most lives with faults."""
WITH_ACTORS = 5
"""One seed in so many has simulated actors of Ray under the lab's own pools."""

DISK = {
    "killed": 150,
    "ended by Ray": 150,
    "power cut": 150,
    "disorderly power cut": 150,
    "full disk": 150,
    "input/output error": 150,
    "read-only disk": 150,
    "slow disk": 150,
    "taken over": 150,
    "second driver": 150,
}
"""Faults at an event of the disk, and the latest such event."""
AT_RENAME, RENAMES = "taken over at a rename", 60
"""Fault in place of `taken over` in every second seed, and the latest rename."""
OTHERS = ("taken over", AT_RENAME, "second driver")
"""Faults by which a second driver works on the run."""
PARTS = {
    "trainer lost": 10,
    "trainer answers late": 10,
    "trainer answers no number": 10,
    "engine dies": 12,
    "engine answers late": 12,
    "raylet dead": 120,
    "asked to stop": 120,
    "clock jumps": 60,
    "ranks live on": 60,
}
"""Faults of parts, with the latest call or half second."""
ACTORS_ALONE = {
    "engine hangs": 12,
    "engine answers twice": 12,
    "engine answers what nobody asked": 12,
    "grader dies": 12,
    "grader hangs": 12,
    "grader answers late": 12,
    "grader answers too little": 12,
    "node leaves and returns": 60,
}
"""Faults of seeds with actors."""
FAULTS = (*DISK, AT_RENAME, *PARTS, *ACTORS_ALONE)
HARMLESS = ("asked to stop", "clock jumps", "trainer answers late", "trainer answers no number", "engine answers late")
"""Faults that happen in good runs, too."""
DEADLY = ("killed", "power cut", "disorderly power cut", "ended by Ray")


@dataclass(frozen=True)
class Fault:
    """A fault of one life.

    Attributes:
        kind: one of `FAULTS`.
        at: number of the disk's event, of a part's call, or simulated half seconds, as the kind has it.
    """

    kind: str
    at: int


def with_actors(seed: int) -> bool:
    """True if a seed has simulated actors."""
    return seed % WITH_ACTORS == 0


def plan(seed: int) -> list[list[Fault]]:
    """The faults of each life of a seed; lives without faults follow."""
    draw, latest = random.Random(f"plan {seed}"), DISK | PARTS | (ACTORS_ALONE if with_actors(seed) else {})
    lives = []
    for _ in range(draw.randint(1, LIVES)):
        kinds = draw.sample(list(latest), draw.choice((1, 1, 2, 3)))
        if with_actors(seed):
            kinds.append(draw.choice(list(ACTORS_ALONE)))
        faults = [Fault(kind, draw.randint(1, latest[kind])) for kind in dict.fromkeys(kinds)]
        if seed % 2:
            faults = [Fault(AT_RENAME, 1 + at.at % RENAMES) if at.kind == "taken over" else at for at in faults]
        lives.append(faults)
    return lives


def good_plan(seed: int) -> list[list[Fault]]:
    """Lives of a good run: it is stopped and resumed, clocks jump, and parts are slow."""
    draw, latest = random.Random(f"good {seed}"), DISK | PARTS
    return [
        [Fault(kind, draw.randint(1, latest[kind])) for kind in draw.sample(HARMLESS, draw.randint(0, 3))]
        for _ in range(draw.randint(1, 2))
    ]


def parsed(text: str) -> list[list[Fault]]:
    """The faults in a line that `shrunk` gave."""
    lives = [[one.split("@") for one in life.split("+") if one] for life in text.split(";")]
    return [[Fault(kind, int(at)) for kind, at in life] for life in lives]
