"""One vLLM engine as a Ray actor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moe.weights.segments import Segment, UnavailableError
from scalelab.cluster.actors import this_node
from scalelab.cluster.heartbeats import Beating, Pulse
from scalelab.imports import quick_imports
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.types import AnyCompletion, Request
from scalelab.shards import taken_out

if TYPE_CHECKING:
    import numpy as np

SPEED_OVER = 300.0
"""Seconds of an engine's work over which its speed is measured: a completion counts when it is finished."""


MOST = 1024
"""Most completions of an answer."""
LEAST_LINGER, LEAST_POLL = 0.05, 1.0
"""Shortest times for which an answer waits for more completions, and for the first, in seconds."""


class EngineActor(Beating):
    """One vLLM engine; the methods are those of `scalelab.rollout.generator.Generator`.

    Args:
        linger: seconds for which finished completions wait for others, where all of its places are taken.
        shard_bytes: see `Cluster.shard_bytes`.
    """

    def __init__(
        self,
        model: str,
        config: GeneratorSetup,
        phrase_ids: Sequence[int],
        end_think: Any,
        seed: int,
        linger: float = 0.0,
        shard_bytes: int = 100_000,
    ) -> None:
        with quick_imports():
            from scalelab.rollout.generator import Generator
            from scalelab.rollout.tokenizer import load_tokenizer

        super().__init__()
        self._tokenizer = load_tokenizer(model)
        self._generator = Generator(model, config, phrase_ids, end_think, seed=seed)
        self._moved = (0.0, time.monotonic())
        self._measured = (0.0, 0.0)
        self._speed: float | None = None
        self._shard_bytes = shard_bytes
        self._linger, self._places = linger, config.max_sequences

    def up(self) -> str:
        """The node that the engine is on, once it is up."""
        return this_node()

    def submit(self, requests: list[Request]) -> None:
        """Start generating."""
        self._generator.submit(requests)

    def collect(
        self, requests: Sequence[Request] = ()
    ) -> tuple[tuple[list[AnyCompletion], dict[str, float]], Any, list[np.ndarray] | None]:
        """Start generating, and give finished completions with their texts and the engine's statistics so far.

        The requests of the completions come without their prompts, which the driver has (`Assignments.take`).
        `stalled_seconds` among the statistics is measured here, where no delay of the loop counts: time with unfinished
        work and no step of the engine.

        Returns:
            Completions and statistics; the shards of contents and of records (`taken_out`), each None if there is none:
            as values of their own they stay in this node's store.
        """
        from scalelab.rollout.tokenizer import with_texts

        if requests:
            self._generator.submit(requests)
        linger = self._linger * min(1.0, self._generator.unfinished / self._places)
        poll = max(LEAST_POLL, 4 * self._linger)
        completions = self._generator.collect(MOST, poll, max(LEAST_LINGER, linger))
        stats, now = self._generator.stats(), time.monotonic()
        if stats["steps"] != self._moved[0] or not self._generator.unfinished:
            self._moved = (stats["steps"], now)
        texts = with_texts(self._tokenizer, completions) if completions else []
        light, contents, records = taken_out(
            [replace(one, request=replace(one.request, prompt_ids=())) for one in texts], self._shard_bytes
        )
        return (light, stats | {"stalled_seconds": now - self._moved[1]}), contents, records or None

    def take_weights(self, segments: list[Segment]) -> str | None:
        """Swap the weights in flight; returns None, or the reason why they cannot be fetched from their publisher."""
        try:
            with self.at("taking weights"):
                self._generator.take_weights(segments, this_node())
        except UnavailableError as error:
            return str(error)
        return None

    def join_broadcasts(self, init_info: dict[str, Any]) -> None:
        """Join the group that weights are sent to; see `Generator.join_broadcasts`."""
        with self.at("joining the group that weights are sent to"):
            self._generator.join_broadcasts(init_info)

    def receive_weights(self, key: str, version: int, update_info: dict[str, Any]) -> None:
        """Load weights that are sent to the group, beside generation; see `Generator.receive_weights`."""
        with self.at("receiving weights"):
            self._generator.receive_weights(key, version, update_info)

    def leave_broadcasts(self) -> None:
        """Leave that group; a transfer under way ends with an error."""
        self._generator.leave_broadcasts()

    def pulse(self) -> Pulse:
        """The engine's current work; while it generates, with the seconds since its last tokens."""
        stats, unfinished = self._generator.stats(), self._generator.unfinished
        pulse = replace(super().pulse(), speed=self._speed_now(stats))
        if pulse.doing != "nothing" or not unfinished:
            return pulse
        return replace(pulse, doing=f"generating {unfinished} completions", seconds=time.monotonic() - self._moved[1])

    def _speed_now(self, stats: dict[str, float]) -> float | None:
        """Tokens of finished completions a second of work, as of the last time that enough of it had passed."""
        tokens, busy = stats["tokens"], stats["busy_seconds_train"] + stats["busy_seconds_eval"]
        if busy - self._measured[1] >= SPEED_OVER:
            self._speed = (tokens - self._measured[0]) / (busy - self._measured[1])
            self._measured = tokens, busy
        return self._speed

    def abort(self, ids: list[str]) -> None:
        """Forget requests."""
        self._generator.abort(ids)
