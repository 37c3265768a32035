"""A version of weights that is sent is loaded with all of its tensors, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from moe.weights.links import EXPERT_BIAS, links
from moe.weights.parcels import rows_name
from scalelab.transfer import engine_side as room
from scalelab.transfer.engine_side import ShardInit, ShardTransfer
from tests.helpers.moe_models import MOE

pytestmark = pytest.mark.slow

HF = MOE.to_hf()
EMBEDDING = "model.embed_tokens.weight"
WEIGHTS = {name: torch.randn(shape) for link in links(HF, single=True) for name, shape in link.parts()}
BIAS = "model.layers.0.feed_forward.router" + EXPERT_BIAS


class _Twin:
    """Takes the tensors that vLLM's loaders would."""

    def begin(self) -> None:
        self.loaded: dict[str, Tensor] = {}

    def add(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.loaded |= weights

    def end(self) -> None:
        pass


class _Receiver:
    """Receives what it is told, or breaks off."""

    def receive(self, update_info: dict[str, Any], add: Callable[[list[tuple[str, Tensor]]], None]) -> None:
        for message in update_info["messages"]:
            add(message)
        if update_info["broken"]:
            raise ConnectionError("the other end is gone")

    def leave(self) -> None:
        pass


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> ShardTransfer:
    monkeypatch.setattr(room, "set_current_vllm_config", lambda config: nullcontext())
    one = ShardTransfer.__new__(ShardTransfer)
    one.vllm_config, one.device = None, torch.device("cpu")
    one.init_transfer_engine(ShardInit(HF))
    one._twin, one._receiver = _Twin(), _Receiver()  # type: ignore[assignment]
    return one


def received(one: ShardTransfer, *messages: list[tuple[str, Tensor]], broken: bool = False) -> str | None:
    """Receive messages; returns the reason why they could not be loaded."""
    one.receive(3, {"messages": messages, "broken": broken})
    ends = time.monotonic() + 60
    while not one.staged()[0]:
        assert time.monotonic() < ends
        time.sleep(0.001)
    return one.staged()[1]


def sent(*without: str) -> list[tuple[str, Tensor]]:
    """All tensors but some, the embedding in three pieces."""
    pieces = zip((0, 40, 72), WEIGHTS[EMBEDDING].split([40, 32, 24]), strict=True)
    embedding = [(rows_name(EMBEDDING, first), rows) for first, rows in pieces]
    rest = [(name, tensor) for name, tensor in WEIGHTS.items() if name != EMBEDDING]
    return [one for one in [*embedding, (BIAS, torch.ones(16)), *rest] if one[0] not in without]


def test_tensors_and_rows_arrive_to_the_last_bit_over_any_messages(transfer: ShardTransfer) -> None:
    everything = sent()
    assert received(transfer, everything[:1], everything[1:2], everything[2:]) is None
    loaded = transfer._twin.loaded  # type: ignore[union-attr]
    assert loaded.keys() == WEIGHTS.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in WEIGHTS.items())
    assert list(transfer._biases) == [BIAS]
    assert transfer.received() == 3


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("model.layers.1.feed_forward.experts.7.down_proj.weight", "and 0 more did not come"),
        (rows_name(EMBEDDING, 72), "only 72 of 96 rows came"),
        (rows_name(EMBEDDING, 40), "rows 72 to 96 of model.embed_tokens.weight came after 40 of 96"),
    ],
)
def test_a_version_that_lacks_an_expert_or_rows_is_refused_by_name(
    transfer: ShardTransfer, missing: str, problem: str
) -> None:
    said = received(transfer, sent(missing))
    assert said is not None
    assert problem in said
    assert missing.partition("@")[0] in said
    assert transfer.received() is None
    assert received(transfer, sent()) is None


def test_what_a_broken_transfer_leaves_is_dropped_and_the_next_version_begins_anew(transfer: ShardTransfer) -> None:
    everything = sent()
    assert received(transfer, everything[:2], broken=True) == "ConnectionError: the other end is gone"
    assert not transfer._rows._came
    assert transfer.received() is None
    assert received(transfer, everything) is None
    assert transfer.received() == 3
