"""Evaluate on an otherwise idle engine in this process: for the virtual world and `scalelab eval`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

from scalelab.errors import LabError
from scalelab.recipe.types import Rollout
from scalelab.rollout.types import AnyCompletion, Completion, Request
from scalelab.run.evaluations import HeldOutPrompt, generate_and_grade
from tasks.task import Task
from tasks.types import Prompt, Verdict

GenerateAll = Callable[[Sequence[Request]], Iterator[list[Completion]]]
"""Function that generates completions of all requests and yields them as they finish."""


class LocalGraders:
    """Graders in threads of this process; their verifiers run untrusted code in child processes.

    Args:
        tasks: make the verifiers.
        threads: groups of completions graded side by side.
        seconds: longest wait for verdicts.
    """

    def __init__(self, tasks: Iterable[Task], threads: int, seconds: float) -> None:
        self._verifiers = {task.name: task.verifier() for task in tasks}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="grader")
        self._seconds = seconds

    def sandboxes(self) -> dict[str, Any]:
        """The sandbox of each task that runs code; starts it."""
        return {name: one.sandbox for name, one in self._verifiers.items() if hasattr(one, "sandbox")}

    def start(self, prompt: Prompt, completions: Sequence[AnyCompletion]) -> Callable[[], list[Verdict]]:
        """Begin to grade, and return a function that waits for the verdicts."""
        here = cast("Sequence[Completion]", completions)  # of an engine in this process
        items = [(prompt, completion.text) for completion in here]
        future: Future[list[Verdict]] = self._threads.submit(self._verifiers[prompt.task].verify, items)

        def verdicts() -> list[Verdict]:
            try:
                return future.result(self._seconds)
            except TimeoutError:
                raise LabError(f"waited {self._seconds:.0f} s for verdicts on {prompt.id}") from None

        return verdicts

    def close(self) -> None:
        """End the verifiers' processes."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for verifier in self._verifiers.values():
            verifier.close()


async def evaluate_locally(
    named: Mapping[str, HeldOutPrompt], generate_all: GenerateAll, graders: LocalGraders
) -> list[Rollout]:
    """Generate and grade completions of held-out prompts in one go; a prompt is graded while others are generated.

    Args:
        named: the held-out prompts by the names that decide on their random numbers; requests are made in their order.
        generate_all: generates the completions.
        graders: grade the completions.
    """
    engine = _CollectingEngine(len(named), generate_all, graders)
    return cast("list[Rollout]", await generate_and_grade(named, engine.generate, engine.grade, list))


class _CollectingEngine:
    """Engine of one evaluation: waits for the requests of all prompts, then generates their completions together.

    Nothing in here waits for real time but the engine and, at the end, the verdicts, so that it serves on a simulated
    clock, too.
    """

    def __init__(self, prompts: int, generate_all: GenerateAll, graders: LocalGraders) -> None:
        self._prompts, self._completions_of, self._graders = prompts, generate_all, graders
        self._asked: list[tuple[Sequence[Request], asyncio.Future[list[Completion]]]] = []
        self._generated = asyncio.Event()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Generate completions of one prompt, in the order of the requests."""
        answer: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._asked.append((requests, answer))
        if len(self._asked) == self._prompts:
            await self._generate_all()
        return await answer

    async def _generate_all(self) -> None:
        unfinished = {request.id: asked for asked in self._asked for request in asked[0]}
        done: dict[str, Completion] = {}
        for completions in self._completions_of([request for requests, _ in self._asked for request in requests]):
            done |= {completion.request.id: completion for completion in completions}
            for completion in completions:
                requests, answer = unfinished[completion.request.id]
                if not answer.done() and all(request.id in done for request in requests):
                    answer.set_result([done[request.id] for request in requests])
            await asyncio.sleep(0)  # prompts that are finished go to the graders
        self._generated.set()

    async def grade(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Verdict]:
        """Grade completions of one prompt; the verdicts are waited for when all is generated."""
        verdicts = self._graders.start(prompt, completions)
        await self._generated.wait()
        return verdicts()
