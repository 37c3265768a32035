"""An evaluation alone on an engine: one batch, rollouts in the prompts' order, errors that name what was waited for."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.errors import LabError
from scalelab.rollout.types import Completion, Request
from scalelab.run.evaluations import HeldOutPrompt, PreparedSet, by_name
from scalelab.run.local_evaluation import LocalGraders, evaluate_locally
from scalelab.run.work import Sampling
from scalelab.session.drive import unwrapped
from scalelab.virtual.clock import run_virtual
from tasks.types import Prompt, Verdict, verdict


class Letters:
    """A tokenizer: a token is a letter."""

    bos_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [1 + ord(letter) % 90 for letter in text]


class Echo:
    """A verifier whose detail is the completion's text."""

    def __init__(self, wait: threading.Event | None = None) -> None:
        self.wait = wait

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        if self.wait is not None:
            self.wait.wait(900)
        return [verdict("passed", detail=f"{prompt.id} {text}") for prompt, text in items]

    def close(self) -> None:
        pass


def task(verifier: Echo) -> Any:
    return SimpleNamespace(name="t", verifier=lambda: verifier)


def completion(request: Request) -> Completion:
    tokens, logprobs, forced = np.ones(1, np.int32), np.zeros(1, np.float32), np.zeros(1, bool)
    return Completion(request, tokens, logprobs, ((0, 0, 1),), forced, False, False, text=request.id)


PROMPTS = [Prompt(f"t/{number}", "t", "?" * (number + 1), "!") for number in range(4)]
NAMED = by_name([PreparedSet(PROMPTS, Sampling(Letters(), generations=3, max_tokens=8))], 7)


@given(st.randoms(use_true_random=False), st.booleans())
def test_rollouts_come_in_the_order_of_the_prompts_whatever_order_they_finish_in(
    rng: random.Random, simulated: bool
) -> None:
    batches: list[list[str]] = []

    def batch(requests: Sequence[Request]) -> Iterator[list[Completion]]:
        batches.append([request.id for request in requests])
        left = list(requests)
        rng.shuffle(left)
        while left:
            count = rng.randint(1, len(left))
            yield [completion(request) for request in left[:count]]
            del left[:count]

    with closing(LocalGraders([task(Echo())], 2, 30.0)) as graders:
        rollouts = (run_virtual if simulated else asyncio.run)(evaluate_locally(NAMED, batch, graders))
    ids = [f"eval/7/{prompt.id}/{number}" for prompt in PROMPTS for number in range(3)]
    assert batches == [ids]
    assert [one.text for one in rollouts] == ids
    assert [one.detail for one in rollouts] == [f"{one.prompt_id} {one.text}" for one in rollouts]


def test_verdicts_that_do_not_come_end_the_evaluation_with_the_prompt_s_name() -> None:
    def batch(requests: Sequence[Request]) -> Iterator[list[Completion]]:
        yield [completion(request) for request in requests]

    ever = threading.Event()
    work = Sampling(Letters(), generations=1, max_tokens=8)
    with closing(LocalGraders([task(Echo(ever))], 1, 0.05)) as graders:
        with pytest.raises(BaseExceptionGroup) as failed:
            asyncio.run(evaluate_locally({"7/t/0": HeldOutPrompt(PROMPTS[0], work)}, batch, graders))
        ever.set()
    error = unwrapped(failed.value)
    assert isinstance(error, LabError)
    assert str(error) == "waited 0 s for verdicts on t/0"
