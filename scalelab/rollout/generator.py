"""A generator: vLLM stepped by one thread, fed and emptied by any, with weights that change in flight.

The loop of the thread is the whole of PipelineRL's generating side (ScaleRL §4): requests go in as places become
free, new weights are swapped in between two steps, finished completions come out.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from moe.errors import first_line, kind_and_line
from moe.model.reading import read_config
from moe.weights.segments import Segment
from scalelab.errors import LabError
from scalelab.rollout.config import GeneratorSetup
from scalelab.rollout.engine import Engine, Output, weight_shapes
from scalelab.rollout.interruption import Phrases, forced_mask
from scalelab.rollout.tokenizer import Transitions
from scalelab.rollout.types import Completion, Kind, Request
from scalelab.transfer.engine_side import fetch

_EMBEDDING = "model.embed_tokens.weight"
_LOOK_SECONDS = 0.02
"""Seconds between two checks whether new weights are loaded."""
_CLOSED = "the generator is closed: start another"
_KINDS: tuple[Kind, ...] = ("train", "eval")
_STATS = [
    *(f"{name}_{kind}" for name in ("completions", "tokens", "busy_seconds") for kind in _KINDS),
    *("idle_seconds", "update_seconds", "updates", "update_bytes", "fetched_bytes", "steps"),
    *("preemptions", "recomputed_tokens"),
]


class Generator:
    """The one vLLM engine of this process.

    All methods may be called from several threads at once. A failure of the engine is fatal: every later call
    raises it.

    Args:
        model_dir: Hugging Face folder with the weights to start from.
        config: size and precision of the engine.
        interruption_token_ids: the phrase that interrupts; empty where no request asks for it.
        end_think: how the text that closes the thinking is recognised.
        threads: CPU threads of the model.
        version: policy version of the weights in `model_dir`.
        seed: of the engine's sampling; generators side by side need different ones, or they draw alike.

    Raises:
        LabError: the engine did not start.
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: GeneratorSetup,
        interruption_token_ids: Sequence[int] = (),
        end_think: Transitions = (),
        threads: int = 1,
        version: int = 0,
        seed: int = 0,
    ) -> None:
        self._config = config
        self._phrases = Phrases(tuple(interruption_token_ids), tuple(end_think))
        shapes = weight_shapes(Path(model_dir))
        if _EMBEDDING not in shapes:
            raise LabError(f"{model_dir} holds no weights of a language model: give a folder with *.safetensors files")
        self._hf_config = read_config(model_dir)
        self._vocab_size = shapes[_EMBEDDING][0]
        self._changed, self._taking = threading.Condition(), threading.Lock()
        self._received: str | None = None
        self._listening = False
        self._live: dict[str, Request] = {}
        self._backlog: deque[Request] = deque()
        self._done: deque[Completion] = deque()
        self._running: Counter[Kind] = Counter()
        self._commands: deque[tuple[Callable[[Engine], None], Future[None]]] = deque()
        self._stats = dict.fromkeys(_STATS, 0.0)
        self._failure: BaseException | None = None
        self._closing = False
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(Path(model_dir), threads, version, seed, started), name="generator", daemon=True
        )
        self._thread.start()
        self._wait(started, config.start_timeout, f"the engine to start on {model_dir}")

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests; each begins when the engine has a place for it, in this order.

        Raises:
            LabError: a request that this engine cannot serve (none of them is queued then), or the engine failed.
        """
        requests = list(requests)
        with self._changed:
            self._check_alive()
            ids = {request.id for request in requests}
            if len(ids) < len(requests) or ids & self._live.keys():
                raise LabError("requests that a generator holds at once need different ids")
            for request in requests:
                self._check(request)
            self._live.update({request.id: request for request in requests})
            self._backlog.extend(requests)
            self._changed.notify_all()

    def collect(self, max_items: int, timeout: float, linger: float = 0.02) -> list[Completion]:
        """Take finished completions, oldest first.

        Args:
            max_items: most to return.
            timeout: seconds to wait for the first one; none by then returns an empty list.
            linger: seconds to wait for more after it, since taking many at once costs callers less.

        Raises:
            LabError: the engine failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._failure or self._closing, timeout)
            self._check_alive()
            self._changed.wait_for(
                lambda: len(self._done) >= max_items or self._failure or self._closing, linger if self._done else 0
            )
            self._check_alive()
            return [self._done.popleft() for _ in range(min(max_items, len(self._done)))]

    def take_weights(self, segments: Sequence[Segment], machine: str | None = None) -> float:
        """Replace the weights by a version that trainer ranks published (`moe.weights.shards`).

        It is fetched and loaded while generation goes on, and put in place between two steps; unfinished sequences go
        on with it and their stale KV cache. Requests that begin afterwards share no KV cache with those before.

        Args:
            segments: of all ranks.
            machine: name of this machine, where it is not `moe.weights.shards.this_machine`.

        Returns:
            Seconds that generation stood still.

        Raises:
            UnavailableError: it cannot be had, perhaps since a newer version takes its place; the old weights stay.
            LabError: it does not fit this model, or cannot be loaded (the old ones stay); or the engine failed.
        """
        ends, seconds = time.monotonic() + self._config.update_timeout, list[float]()
        version, size = segments[0].version, sum(segment.size for segment in segments)
        what = f"the generator to take weights of version {version}"

        def take(engine: Engine) -> None:
            began = time.monotonic()
            engine.take(version)
            seconds.append(time.monotonic() - began)
            self._stats["update_seconds"] += seconds[0]
            self._stats["updates"] += 1
            self._stats["update_bytes"] += size
            self._stats["fetched_bytes"] += fetched

        self._stop_listening()
        with self._taking:
            if self._received == segments[0].key:
                fetched = size
            else:
                self._received = None
                deadline = self._config.update_timeout
                with closing(fetch(self._hf_config, segments, machine, deadline)) as snapshot:
                    self._beside(lambda engine: engine.stage(snapshot), ends, what)
                    fetched = snapshot.fetched
            self._call(take, ends - time.monotonic(), what)
        return seconds[0]

    def join_broadcasts(self, init_info: dict[str, Any]) -> None:
        """Join the group that new weights are sent to over NCCL, in place of an earlier one.

        Args:
            init_info: see `scalelab.transfer.engine_side.join`.

        Raises:
            LabError: the group was not formed in time, or cannot be.
        """
        ends = time.monotonic() + self._config.update_timeout
        self._stop_listening()
        with self._taking, self._listens():
            what = "the generator to join the group that weights are sent to"
            self._beside(lambda engine: engine.join(init_info), ends, what)

    def receive_weights(self, key: str, version: int, update_info: dict[str, Any]) -> None:
        """Load weights that are sent to the group, while generation goes on; `take_weights` then puts them in place.

        Args:
            key: of the first segment of the same publication.
            version: policy version.
            update_info: see `scalelab.transfer.engine_side.receive`.

        Raises:
            LabError: they did not all arrive; the weights in place stay.
        """
        ends, whole = time.monotonic() + self._config.update_timeout, list[bool]()
        with self._taking, self._listens():
            what = f"weights of version {version} to be sent"
            self._beside(lambda engine: engine.receive(version, update_info), ends, what)
            self._call(lambda engine: whole.append(engine.received(version)), ends - time.monotonic(), what)
            self._received = key if whole == [True] else None

    def leave_broadcasts(self) -> None:
        """Leave the group; a transfer under way ends with an error."""
        what = "the generator to leave the group that weights are sent to"
        self._call(lambda engine: engine.leave(), self._config.update_timeout, what)

    @contextmanager
    def _listens(self) -> Iterator[None]:
        """Note that the sender of weights is waited for; if it fails to come, leave the group."""
        self._received, self._listening = None, True
        try:
            yield
        except LabError:
            self.leave_broadcasts()
            raise
        finally:
            self._listening = False

    def _stop_listening(self) -> None:
        """End what waits for a sender that asks for other things by now."""
        if self._listening:
            self.leave_broadcasts()

    def _beside(self, begin: Callable[[Engine], None], ends: float, what: str) -> None:
        """Let the engine begin something, and wait until it is done, while generation goes on."""
        ready = threading.Event()

        def look(engine: Engine) -> None:
            if engine.staged():
                ready.set()

        self._call(begin, ends - time.monotonic(), what)
        while not ready.wait(_LOOK_SECONDS):
            if time.monotonic() > ends:
                seconds = self._config.update_timeout
                raise LabError(f"waited {seconds:.0f} s for {what}: raise the timeout if it only is slow")
            self._call(look, self._config.update_timeout, what)

    def abort(self, ids: Iterable[str]) -> list[str]:
        """Forget unfinished requests; returns the ids that were unfinished, whose completions will not come."""
        wanted = set(ids)
        aborted: list[str] = []

        def forget(engine: Engine) -> None:
            with self._changed:
                aborted.extend(id for id in self._live if id in wanted)
                backlog = {request.id for request in self._backlog}
                self._backlog = deque(request for request in self._backlog if request.id not in wanted)
                begun = [id for id in aborted if id not in backlog]
                self._running.subtract(self._live[id].kind for id in begun)
                for id in aborted:
                    del self._live[id]
            engine.abort(begun)

        self._call(forget, self._config.update_timeout, "the generator to abort requests")
        return aborted

    @property
    def unfinished(self) -> int:
        """Completions submitted and not finished."""
        with self._changed:
            self._check_alive()
            return len(self._live)

    def stats(self) -> dict[str, float]:
        """Totals since the start.

        Returns:
            `completions_KIND`, `tokens_KIND` of finished completions and `busy_seconds_KIND` for KIND in train,
            eval (a step with both is split by their sequences); `completions` and `tokens` of both;
            `idle_seconds` without work; `update_seconds` standing still for `updates` new weights of `update_bytes`
            together, of which `fetched_bytes` came from other machines or by broadcast; `steps`; `preemptions` of
            sequences whose KV cache others needed, and `recomputed_tokens` because of them, at most.
        """
        with self._changed:
            self._check_alive()
            stats = dict(self._stats)
        for name in ("completions", "tokens"):
            stats[name] = sum(stats[f"{name}_{kind}"] for kind in _KINDS)
        return stats

    def close(self, timeout: float = 60.0) -> None:
        """Stop the thread and free the engine; unfinished requests are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise LabError(f"waited {timeout:.0f} s for the generator to finish its step: end the process")

    # Calls that wait for the engine's thread.

    def _call(self, command: Callable[[Engine], None], timeout: float, what: str) -> None:
        future: Future[None] = Future()
        with self._changed:
            self._check_alive()
            self._commands.append((command, future))
            self._changed.notify_all()
        self._wait(future, timeout, what)

    def _wait(self, future: Future[None], timeout: float, what: str) -> None:
        try:
            future.result(timeout)
        except FutureTimeoutError:
            raise LabError(f"waited {timeout:.0f} s for {what}: raise the timeout if it only is slow") from None
        except Exception:
            self._check_alive()
            raise

    def _check_alive(self) -> None:
        if self._closing:
            raise LabError(_CLOSED)
        if self._failure is not None:
            reason = first_line if isinstance(self._failure, LabError) else kind_and_line
            raise LabError(f"the generator failed: {reason(self._failure)}") from self._failure

    def _check(self, request: Request) -> None:
        length = len(request.prompt_ids) + request.max_tokens
        if not request.prompt_ids or request.max_tokens < 1:
            problem = "needs a prompt and max_tokens of at least 1"
        elif not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocab_size:
            problem = f"has token ids outside the model's vocabulary of {self._vocab_size}: use the model's tokenizer"
        elif length > self._config.max_model_len:
            problem = f"may reach {length} tokens: raise max_model_len ({self._config.max_model_len})"
        elif request.temperature != 1 and request.kind == "train":
            problem = f"trains on temperature {request.temperature}: its log-probs would not be the policy's, use 1"
        elif request.interrupt_at is not None and not (self._phrases.interruption and self._phrases.end_think):
            problem = "is to be interrupted: give the generator the phrase and what closes thinking"
        else:
            return
        raise LabError(f"request {request.id} {problem}")

    # Methods that run in the engine's thread.

    def _run(self, model_dir: Path, threads: int, version: int, seed: int, started: Future[None]) -> None:
        try:
            torch.set_num_threads(threads)
            with closing(Engine(model_dir, self._config, self._phrases, version, seed)) as engine:
                started.set_result(None)
                while not self._closing:
                    self._turn(engine)
                raise LabError(_CLOSED)
        except BaseException as error:  # the calls of the other threads raise it
            with self._changed:
                self._failure = error
                unanswered = [started, *(future for _, future in self._commands)]
                self._changed.notify_all()
            for future in unanswered:
                if not future.done():
                    future.set_exception(error)

    def _turn(self, engine: Engine) -> None:
        """Carry out commands, start waiting requests, generate one token each, hand out finished completions."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._commands or self._live or self._closing, timeout=1.0)
        self._stats["idle_seconds"] += time.monotonic() - began
        while self._commands:
            command, future = self._commands[0]
            try:
                command(engine)
            except LabError as error:  # a refusal, which leaves the engine as it was
                future.set_exception(error)
            else:
                future.set_result(None)
            self._commands.popleft()
        for request in self._admit():
            engine.add(request)
        if self._running.total():
            began = time.monotonic()
            outputs = engine.step()
            self._account(time.monotonic() - began)
            self._stats.update(preemptions=engine.preemptions, recomputed_tokens=engine.recomputed)
            if outputs:
                self._hand_out(outputs)

    def _admit(self) -> list[Request]:
        """Start requests from the backlog as far as there are free places."""
        with self._changed:
            free = self._config.max_sequences - self._running.total()
            requests = [self._backlog.popleft() for _ in range(min(free, len(self._backlog)))]
        self._running.update(request.kind for request in requests)
        return requests

    def _account(self, seconds: float) -> None:
        self._stats["steps"] += 1
        for kind, count in self._running.items():
            self._stats[f"busy_seconds_{kind}"] += seconds * count / self._running.total()

    def _hand_out(self, outputs: list[Output]) -> None:
        with self._changed:
            for output in outputs:
                completion = complete(self._live.pop(output.id), output, self._phrases)
                kind = completion.request.kind
                self._running[kind] -= 1
                self._stats[f"completions_{kind}"] += 1
                self._stats[f"tokens_{kind}"] += len(output.token_ids)
                self._done.append(completion)
            self._changed.notify_all()


def complete(request: Request, output: Output, phrases: Phrases) -> Completion:
    """Build a `Completion` from the engine's output; its text is added where the tokenizer is."""
    forced_T = forced_mask(output.token_ids.tolist(), request.interrupt_at, phrases)
    return Completion(
        request=request,
        token_ids=output.token_ids,
        logprobs_T=output.logprobs_T,
        spans=output.spans,
        forced_T=forced_T,
        truncated=output.truncated,
        interrupted=bool(forced_T.any()),
        routed_TLK=output.routed_TLK,
    )
