"""Threads that parse at the same time do not disturb one another."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.code.parsing import parse_python

SOURCE = "def f(x):\n    if x:\n        return g(x + 1, y=[1, 2, 3])\n" * 50


@pytest.fixture
def switching_collector() -> Iterator[None]:
    """A collection of garbage that runs often, and lets other threads run in the middle of a call."""

    def switch(*_: object) -> None:
        time.sleep(0.0002)

    thresholds = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(200)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(switch)


@pytest.mark.usefixtures("switching_collector")
def test_right_source_is_parsed_while_other_threads_parse() -> None:
    with ThreadPoolExecutor(4) as pool:
        for parsed in [pool.submit(parse_python, SOURCE) for _ in range(40)]:
            assert len(parsed.result().body) == 50
