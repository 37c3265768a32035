"""Imports of vLLM, Megatron and all that comes with them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch the garbage collector off for imports: it would take a sixth of their time, and find next to nothing.

    Later collections pass over what was made until then, which stays for good: one of vLLM's at its start took 0.7 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
