"""Imports of vLLM, Megatron and all that comes with them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED = "wandb"
"""Package that Megatron imports where it is installed, for an inference engine of its own: a twelfth of its imports."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Spare imports what they do not need: the garbage collector, and W&B's client.

    The collector would take a sixth of their time, and find next to nothing. Later collections pass over what was made
    until then, which stays for good: one of vLLM's at its start took 0.7 s.
    """
    hidden = UNUSED not in sys.modules
    gc.disable()
    if hidden:
        sys.modules[UNUSED] = None  # type: ignore[assignment]  # Python's own word for "not installed"
    try:
        yield
    finally:
        if hidden:
            del sys.modules[UNUSED]
        gc.freeze()
        gc.enable()
