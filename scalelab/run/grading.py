"""Completions of a prompt with their verdicts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from scalelab.rollout.types import LostVerdict
from scalelab.run.ports import CompletionT, RequestT, VerdictT

AGAIN = 3
"""Most times that lost completions of a prompt are generated again."""


async def generated_and_graded(
    requests: Sequence[RequestT],
    generate: Callable[[Sequence[RequestT]], Awaitable[list[CompletionT]]],
    grade: Callable[[Sequence[CompletionT]], Awaitable[list[VerdictT]]],
) -> tuple[list[CompletionT], list[VerdictT]]:
    """Generate and grade the completions of a prompt; those whose text is lost before that are generated again.

    An engine's node takes with it what it answered. The completions of a prompt lie on many nodes, and wait for the
    slowest: with an `error` for each that is lost, most prompts of an evaluation would have one, and not count.

    Args:
        requests: for its completions.
        generate: `Engines.generate`.
        grade: `Graders.grade` of the prompt.
    """
    completions = await generate(requests)
    verdicts = await grade(completions)
    for _ in range(AGAIN):
        lost = [n for n, one in enumerate(verdicts) if isinstance(one, LostVerdict)]
        if not lost:
            break
        fresh = await generate([requests[n] for n in lost])
        for n, completion, verdict in zip(lost, fresh, await grade(fresh), strict=True):
            completions[n], verdicts[n] = completion, verdict
    return completions, verdicts
