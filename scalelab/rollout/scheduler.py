"""vLLM's scheduler for engines on a CPU, with the tokens of running sequences in arrays (vLLM 0.32.0).

A small model decodes a thousand sequences in 20 ms, and vLLM's own loops over them in Python took longer than that.
Every running sequence takes one token in a step, so a step is a few operations on arrays, and an output is made once
for each sequence, when it ends. vLLM's own code admits, drops and frees sequences; before it looks at running ones,
`settle` tells it how far they are.

Axes: `_B` running sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

BlockIds = tuple[list[int], ...] | None


class _Table:
    """Tokens of the sequences that a scheduler holds, one row each."""

    def __init__(self, rows: int, length: int) -> None:
        self.tokens = np.zeros((rows, length), np.int32)
        self.logprobs = np.zeros((rows, length), np.float32)
        self.prompt = np.zeros(rows, np.int64)
        self.count = np.zeros(rows, np.int64)
        """Tokens that were generated."""
        self.settled = np.zeros(rows, np.int64)
        """Generated tokens that vLLM's own request has."""
        self.limit = np.zeros(rows, np.int64)
        """Most tokens that may be generated."""
        self._row: dict[str, int] = {}
        self._free = list(range(rows))

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def row(self, name: str) -> int:
        return self._row[name]

    def rows(self, names: Sequence[str]) -> np.ndarray:
        return np.fromiter(map(self._row.__getitem__, names), np.int64, len(names))

    def add(self, request: Request, length: int) -> None:
        if not self._free:  # dropped sequences wait beside as many as run
            self._double()
        row = self._row[request.request_id] = self._free.pop()
        self.prompt[row] = request.num_prompt_tokens
        self.count[row] = self.settled[row] = 0
        self.limit[row] = min(request.max_tokens, length - request.num_prompt_tokens)

    def drop(self, name: str) -> None:
        if name in self._row:
            self._free.append(self._row.pop(name))

    def _double(self) -> None:
        rows = len(self.count)
        for name in ("tokens", "logprobs", "prompt", "count", "settled", "limit"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
        self._free = list(range(rows, 2 * rows))


class ArrayScheduler(Scheduler):
    """vLLM's scheduler without its loops over running sequences; takes no prompt in pieces and no speculation."""

    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.scheduler_config.enable_chunked_prefill or len(self.kv_cache_config.kv_cache_groups) > 1:
            raise ValueError("whole prompts and one kind of KV cache are asked for")
        self._table = _Table(self.max_num_running_reqs, self.max_model_len)
        self._stops: frozenset[int | None] = frozenset()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Give every running sequence a token, and have vLLM admit others."""
        running = self.running
        names = [request.request_id for request in running]
        rows_B = self._table.rows(names)
        computed_B = self._table.prompt[rows_B] + self._table.count[rows_B] - 1
        due = np.flatnonzero(computed_B % self.block_size == 0)
        if len(due) > self.kv_cache_manager.block_pool.get_num_free_blocks():
            self.settle()  # vLLM drops some, and needs to know how far each is
            output = super().schedule(throttle_prefills)
            self._enter(output.num_scheduled_tokens)
            return output
        blocks_B: list[BlockIds] = [None] * len(running)
        for at in due:
            self._settle(running[at])
            new = self.kv_cache_manager.allocate_slots(running[at], 1)
            assert new is not None  # there are as many free blocks as are due
            blocks_B[at] = new.get_block_ids(allow_none=True)
        output = self._admit(throttle_prefills)
        self._enter(output.num_scheduled_tokens)
        begun = output.scheduled_cached_reqs  # dropped ones that go on
        output.scheduled_cached_reqs = CachedRequestData(
            req_ids=names + begun.req_ids,
            resumed_req_ids=begun.resumed_req_ids,
            new_token_ids=[],
            all_token_ids=begun.all_token_ids,
            new_block_ids=blocks_B + begun.new_block_ids,
            num_computed_tokens=computed_B.tolist() + begun.num_computed_tokens,
            num_output_tokens=self._table.count[rows_B].tolist() + begun.num_output_tokens,
        )
        output.num_scheduled_tokens = {**dict.fromkeys(names, 1), **output.num_scheduled_tokens}
        output.total_num_scheduled_tokens += len(names)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Keep every sequence's token and log-probability, and end those that are whole."""
        names, table = model_runner_output.req_ids, self._table
        if not names:
            return {}
        logprobs = model_runner_output.logprobs
        assert logprobs is not None  # every request asks for them
        rows_B = table.rows(names)
        tokens_B = np.array(model_runner_output.sampled_token_ids, np.int32)[:, 0]
        at_B = table.count[rows_B]
        table.tokens[rows_B, at_B] = tokens_B
        table.logprobs[rows_B, at_B] = logprobs.logprobs[:, 0]
        table.count[rows_B] = at_B + 1
        full_B = at_B + 1 >= table.limit[rows_B]
        stops = [token for token in self._stops if token is not None]
        outputs = []
        for at in np.flatnonzero(full_B | np.isin(tokens_B, stops)):
            request = self.requests[names[at]]
            stopped = int(tokens_B[at]) in _stop_ids(request)
            if stopped or full_B[at]:
                outputs.append(self._end(request, stopped))
        return {0: EngineCoreOutputs(outputs=outputs)} if outputs else {}

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Forget requests, as vLLM does."""
        finished = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self._table.drop(request.request_id)
        return finished

    def generated(self, name: str) -> int:
        """Tokens of a request so far."""
        return int(self._table.count[self._table.row(name)]) if name in self._table else 0

    def settle(self) -> None:
        """Tell vLLM's own books how far all running sequences are."""
        for request in self.running:
            self._settle(request)
        self.prev_step_scheduled_req_ids.clear()
        self.prev_step_scheduled_req_ids.update(request.request_id for request in self.running)

    def _settle(self, request: Request) -> None:
        table, row = self._table, self._table.row(request.request_id)
        count = int(table.count[row])
        request.append_output_token_ids(table.tokens[row, table.settled[row] : count].tolist())
        table.settled[row] = count
        request.num_computed_tokens = request.num_tokens - 1  # all but the one that was sampled last

    def _admit(self, throttle_prefills: bool) -> SchedulerOutput:
        """Have vLLM admit waiting sequences into the places and tokens that running ones leave."""
        running, taken = self.running, len(self.running)
        caps = ("max_num_running_reqs", "max_num_active_reqs", "max_num_scheduled_tokens")
        most = {cap: getattr(self, cap) for cap in caps}
        self.running = []
        try:
            for cap in caps:
                setattr(self, cap, most[cap] - taken)
            return super().schedule(throttle_prefills)
        finally:
            for cap in caps:
                setattr(self, cap, most[cap])
            self.running = running + self.running

    def _enter(self, names: Iterable[str]) -> None:
        """Take sequences that vLLM has scheduled into the table; their step is over before vLLM looks again."""
        for name in names:
            request = self.requests[name]
            request.num_in_flight_tokens = 0
            if name not in self._table:
                self._table.add(request, self.max_model_len)
                self._stops |= _stop_ids(request)

    def _end(self, request: Request, stopped: bool) -> EngineCoreOutput:
        """End a sequence, and hand out all of it."""
        row, table = self._table.row(request.request_id), self._table
        count = int(table.count[row])
        tokens, logprobs = table.tokens[row, :count, None], table.logprobs[row, :count, None].copy()
        status = RequestStatus.FINISHED_STOPPED if stopped else RequestStatus.FINISHED_LENGTH_CAPPED
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=tokens[:, 0].tolist(),
            new_logprobs=LogprobsLists(tokens.copy(), logprobs, np.zeros(count, np.int32)),
            finish_reason=RequestStatus.get_finished_reason(status),
        )
        self.finish_requests(request.request_id, status)
        return output


def _stop_ids(request: Request) -> frozenset[int | None]:
    params = request.sampling_params
    assert params is not None
    return frozenset((*(params.stop_token_ids or ()), params.eos_token_id))
