"""Grade mathematics: take the one answer a completion commits to and compare it with the gold answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from tasks.bounded.pool import Answer, BoundedPool, Service
from tasks.errors import TaskError
from tasks.math.equality import decide
from tasks.math.extract import extract_answer
from tasks.math.read import MAX_ANSWER
from tasks.thinking import answer_part
from tasks.types import Outcome, Prompt, Verdict, verdict

_OUTCOMES: dict[str, tuple[Outcome, str]] = {
    "timeout": ("timeout", "comparing took longer than its deadline"),
    "memory": ("memory", "comparing took more memory than it may"),
    "died": ("error", "two workers died comparing"),
}


class MathVerifier:
    """Verifier of mathematics: strings and numbers at once, the rest in killable processes; see `tasks.task.Verifier`.

    A prompt's `gold` is its answer as a string: a number, words, or LaTeX.
    """

    def __init__(
        self,
        workers: int = 2,
        deadline: float = 3.0,
        memory_mb: int = 1024,
        whole_if_unclosed: bool = False,
    ) -> None:
        """Prepare a verifier; its processes start with the first completion.

        Args:
            workers: processes for answers that neither string nor number comparison decides.
            deadline: seconds of processor time that one comparison may take (asleep, ten times that).
            memory_mb: address space of one process, in MiB.
            whole_if_unclosed: grade completions without `</think>` as a whole instead of failing them.

        Raises:
            TaskError: no workers, no time, or less memory than SymPy itself needs.
        """
        if workers < 1 or deadline <= 0 or memory_mb < 256:
            raise TaskError(
                f"math verifier with {workers} workers, {deadline} s and {memory_mb} MiB: "
                "give at least 1 worker, more than 0 s and 256 MiB"
            )
        self._workers_wanted = workers
        self._service = Service("math", f"{__package__}.algebra:service", seconds=deadline, memory_mb=memory_mb)
        self._whole_if_unclosed = whole_if_unclosed
        self._lock = threading.Lock()
        self._pool: BoundedPool | None = None

    def verify(self, items: Sequence[tuple[Prompt, str]]) -> list[Verdict]:
        """One verdict per (prompt, completion), in order.

        What several completions answer to one gold answer is read once; the first has the seconds that it took.

        Raises:
            TaskError: workers cannot be started.
        """
        answers = [(str(prompt.gold), self._answer(completion)) for prompt, completion in items]
        read = {pair: _read(*pair) for pair in dict.fromkeys(answers)}
        undecided = [(gold, answer) for (gold, answer), known in read.items() if known is None and answer is not None]
        compared = self._workers().answer(undecided) if undecided else ()
        read |= {asked: _compared(one, asked[1]) for asked, one in zip(undecided, compared, strict=True)}
        verdicts: list[Verdict] = []
        for pair in answers:
            known = read[pair]
            assert known is not None
            verdicts.append(known)
            read[pair] = replace(known, seconds=0.0)
        return verdicts

    def close(self) -> None:
        """End the worker processes."""
        with self._lock:
            if self._pool:
                self._pool.close()

    def _answer(self, completion: str) -> str | None:
        part = answer_part(completion, whole_if_unclosed=self._whole_if_unclosed)
        return None if part is None else extract_answer(part)

    def _workers(self) -> BoundedPool:
        with self._lock:
            if self._pool is None:
                self._pool = BoundedPool(self._service, self._workers_wanted)
            return self._pool


def _read(gold: str, answer: str | None) -> Verdict | None:
    """The verdict on an answer, or None where only algebra can tell."""
    start = time.monotonic()
    try:
        equal = False if answer is None else decide(gold, answer)
    except Exception as error:  # nothing that an answer says may end its neighbours' grading
        return verdict("error", time.monotonic() - start, f"the verifier failed: {type(error).__name__}")
    return None if equal is None else _decided(equal, answer, time.monotonic() - start)


def _decided(equal: bool, answer: str | None, seconds: float) -> Verdict:
    if answer is None:
        return verdict("failed", seconds, f"no answer of at most {MAX_ANSWER} characters")
    return verdict("passed" if equal else "failed", seconds, answer[:80])


def _compared(compared: Answer, answer: str) -> Verdict:
    if compared.status == "done" or compared.status == "raised":  # SymPy has met something it cannot compute with
        return _decided(compared.value is True, answer, compared.seconds)
    outcome, detail = _OUTCOMES[compared.status]
    if compared.status == "died":
        detail = f"{detail} ({compared.value})"
    return verdict(outcome, compared.seconds, f"{detail}: {answer[:80]}")
