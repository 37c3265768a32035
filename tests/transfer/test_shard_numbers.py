"""The numbers under which engines take part in sharded transfers."""

from __future__ import annotations

from typing import Any

import pytest

from scalelab.transfer.listener import Listener

pytestmark = pytest.mark.slow  # loads vLLM

A, B, C, D = (Listener(f"generator {name}", name, 2) for name in "ABCD")


@pytest.mark.parametrize(
    ("listeners", "connected", "numbers", "newcomers"),
    [
        ([A, B, C], {}, {0: A, 1: B, 2: C}, [0, 1, 2]),
        ([A, C], {0: A, 1: B, 2: C}, {0: A, 2: C}, []),
        ([A, D, C], {0: A, 1: B, 2: C}, {0: A, 1: D, 2: C}, [1]),
        ([B], {0: A, 1: B}, {0: B}, [0]),
        ([A, B], {0: B}, {0: B, 1: A}, [1]),
    ],
)
def test_connected_engines_keep_their_numbers_and_a_single_one_is_0(
    listeners: list[Any], connected: dict[int, Any], numbers: dict[int, Any], newcomers: list[int]
) -> None:
    from scalelab.transfer.sharded import numbered

    assert (numbered(listeners, connected)[0], list(numbered(listeners, connected)[1])) == (numbers, newcomers)
