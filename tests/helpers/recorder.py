"""Record what decides the times of a virtual run: lengths of completions, groups left out, tokens trained on.

Run as a program, it makes virtual runs in turn and leaves a `recorded.json` in the folder of each.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from scalelab.cli import main
from scalelab.recipe.step import in_loss
from scalelab.virtual.engines import Stream
from scalelab.virtual.world import VirtualRun


class Recorder:
    """Receiver of a virtual run's completions and groups, put between its parts."""

    def __init__(self, world: VirtualRun) -> None:
        self._world = world
        self.lengths: dict[str, list[list[int | None]]] = defaultdict(list)
        """Tokens of a group's completions, each time that it was asked for; None for what a rest broke off."""
        self.trained: dict[str, int] = {}
        """Tokens that a group brings into its step."""
        self.dropped: dict[str, str] = {}
        """Reasons of the groups that others took the place of."""
        self._generate, self._finish, self._book = world.engines.generate, world.engines._finish, world.books.finish
        world.engines.generate = self._asked  # type: ignore[method-assign]
        world.engines._finish = self._ended  # type: ignore[method-assign]
        world.books.finish = self._booked  # type: ignore[method-assign]

    async def _asked(self, requests: Sequence[Any]) -> list[Any]:
        self.lengths[requests[0].id.split("/")[1]].append([None] * len(requests))
        return await self._generate(requests)

    def _ended(self, sequence: Stream, completion: Any) -> None:
        _, name, number = sequence.request.id.split("/")
        self.lengths[name][-1][int(number)] = len(completion.token_ids)
        self._finish(sequence, completion)

    def _booked(self, name: str, rollouts: list[Any], pass_rate: float | None, drop_reason: str | None) -> None:
        learnt = in_loss([rollouts], self._world.run.recipe)
        self.trained[name] = sum(len(one.prompt_ids) + one.tokens for one in learnt)
        if drop_reason is not None:
            self.dropped[name] = drop_reason
        self._book(name, rollouts, pass_rate, drop_reason)

    def write(self) -> None:
        """Leave what was recorded in the run's folder."""
        recorded = {"lengths": self.lengths, "trained": self.trained, "dropped": self.dropped}
        (self._world.folder.path / "recorded.json").write_text(json.dumps(recorded))


class RecordedRun(VirtualRun):
    """A virtual run with a recorder."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._recorder = Recorder(self)

    def close(self) -> None:
        self._recorder.write()
        super().close()


if __name__ == "__main__":
    from scalelab.virtual import world

    world.VirtualRun = RecordedRun  # type: ignore[misc, assignment]
    sys.exit(max(main(arguments) for arguments in json.loads(sys.argv[1])))
