"""Requests of a run's engines in groups, as `generate` is given them, and their completions as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalelab.rollout.types import Completion, Kind, Request
from scalelab.run.ports import EvaluationLostError


@dataclass(eq=False)
class RequestGroup:
    """The requests of one call of `generate`, as they are answered."""

    answers: dict[str, Completion | None]
    left: int
    done: asyncio.Future[None]
    kind: Kind

    async def completions(self) -> list[Completion]:
        """All completions, in the order of the requests, once the last is there."""
        await self.done
        return [completion for completion in self.answers.values() if completion is not None]


class RequestGroups:
    """Groups with requests that are not answered yet."""

    def __init__(self) -> None:
        self._epoch = 0
        self._of: dict[str, RequestGroup] = {}

    def begin(self, requests: Sequence[Request]) -> tuple[list[Request], RequestGroup]:
        """Begin a group; returns its requests under names that never come again.

        After a return to a checkpoint the names that they had come again.
        """
        own = [replace(request, id=f"{self._epoch}/{request.id}") for request in requests]
        answers: dict[str, Completion | None] = {request.id: None for request in own}
        group = RequestGroup(answers, len(own), asyncio.get_running_loop().create_future(), own[0].kind)
        self._of.update((request.id, group) for request in own)
        return own, group

    def finish(self, completion: Completion) -> None:
        """Take a completion; the last of a group ends it."""
        group = self._of.pop(completion.request.id)
        group.answers[completion.request.id] = completion
        group.left -= 1
        if not group.left and not group.done.done():
            group.done.set_result(None)

    def forget(self) -> None:
        """Drop all groups."""
        self._epoch += 1
        self._of.clear()

    def lose_evaluation(self, error: EvaluationLostError) -> set[str]:
        """End the groups of the running evaluation with an error; returns the names of their requests."""
        gone = {id for id, group in self._of.items() if group.kind == "eval"}
        for id in gone:
            group = self._of.pop(id)
            if not group.done.done():
                group.done.set_exception(error)
        return gone
