"""A worker that pulls shards waits for the trainer's servers no longer than it may."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import ray
import torch
from vllm.distributed.weight_transfer.sharded_rdt_engine import ShardedRDTWeightTransferEngine

from scalelab.errors import LabError
from scalelab.transfer import puller
from scalelab.transfer.puller import Puller

pytestmark = pytest.mark.slow


class _Router:
    """Servers that never answer."""

    def reserve_serve_buffers(self, *args: Any) -> list[str]:
        """Return a reference that is never ready."""
        return ["a server's answer"]


@pytest.fixture
def pulling(monkeypatch: pytest.MonkeyPatch) -> Puller:
    """A worker whose servers never answer; of vLLM's engine there is only the meeting, which waits without an end."""

    def meet(engine: Any, init_info: Any) -> None:
        engine._dest_buffers = []
        engine._resolve_producers(init_info)
        ray.get(engine._router.reserve_serve_buffers([]))

    def resolve(engine: Any, init_info: Any) -> None:
        engine._router = _Router()

    def wait(refs: list[str], *, num_returns: int, timeout: float, fetch_local: bool) -> tuple[list[str], list[str]]:
        time.sleep(timeout)
        return [], refs

    monkeypatch.setattr(puller, "without_nixl", lambda who: None)
    monkeypatch.setattr(puller, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(puller._Engine, "__init__", lambda engine, *args: setattr(engine, "_ended", False))
    monkeypatch.setattr(ShardedRDTWeightTransferEngine, "parse_init_info", lambda engine, info: info)
    monkeypatch.setattr(ShardedRDTWeightTransferEngine, "init_transfer_engine", meet)
    monkeypatch.setattr(ShardedRDTWeightTransferEngine, "_resolve_producers", resolve)
    monkeypatch.setattr(puller._Engine, "_dest_buffers", [], raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda refs: threading.Event().wait())
    arguments: Any = None, torch.device("cpu"), None, threading.Lock()
    return Puller(*arguments)


def test_a_server_that_does_not_answer_is_waited_for_until_the_deadline(pulling: Puller) -> None:
    began = time.monotonic()
    with pytest.raises(LabError, match="the trainer's ranks did not reserve memory for this engine in time"):
        pulling.join({"ray_address": ""}, 0.3)
    assert 0.3 <= time.monotonic() - began < 60


def test_a_meeting_ends_when_the_worker_leaves(pulling: Puller) -> None:
    said: list[str] = []

    def join() -> None:
        try:
            pulling.join({"ray_address": ""}, 900.0)
        except LabError as error:
            said.append(str(error))

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    while pulling._joining is None:
        time.sleep(0.01)
    pulling.leave()
    thread.join(60.0)
    assert said == ["the transfer of shards was ended"]
