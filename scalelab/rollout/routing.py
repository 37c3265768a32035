"""Record the experts of every token, so that the trainer can send it through the same ones (router replay).

Generator and trainer compute a token's router logits with different kernels, and the trainer's weights may be newer.
Where two experts are nearly tied that flips the choice, which moves a log-prob far more than rounding does; runs on
mixtures of experts collapsed from it.

On a GPU vLLM hands the record out itself (`enable_return_routed_experts`). On a CPU its routers have the hook but its
model runner has no way out for what they see, so this reads the hook (vLLM 0.32.0).

Axes: `_B` sequences of a step, `_N` tokens of a step, `_T` tokens of a prompt and its completion, `_L` layers, `_K`
experts of a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.fused_moe.layer import MoERunner

from scalelab.errors import LabError
from scalelab.recipe.types import NOT_RECORDED

# Nothing is recorded of tokens that were not computed (a prompt found in the prefix cache, the last token), and of
# dense layers.


def of_all_tokens(routed: np.ndarray | None, tokens: int) -> np.ndarray:
    """Add to vLLM's own record a row for the last token.

    That token was sampled and never computed, so vLLM has no experts for it. It counts experts from 0 in the narrowest
    unsigned type (`RoutedExpertsCapturer`), which has no place for `NOT_RECORDED`.

    Args:
        routed: vLLM's record [T − 1, L, K].
        tokens: T, of the prompt and its completion.

    Returns:
        int16 [T, L, K].

    Raises:
        LabError: vLLM handed out nothing, or another number of rows.
    """
    if routed is None or len(routed) != tokens - 1:
        rows = "no record" if routed is None else f"{len(routed)} rows"
        raise LabError(
            f"router replay needs the experts of the {tokens - 1} tokens that were computed, and vLLM handed out "
            f"{rows}: install the pinned vLLM 0.32.0, or set Recipe.router_replay to False"
        )
    whole_TLK = np.full((tokens, *routed.shape[1:]), NOT_RECORDED, np.int16)
    whole_TLK[:-1] = routed
    return whole_TLK


class RoutingRecorder:
    """Recorder of the routers' choices for the sequences that an engine holds.

    Args:
        runner: vLLM's model runner; its routers' hooks are taken.
        sequences: held at most at once.
        length: most tokens of a prompt and its completion.
    """

    def __init__(self, runner: Any, sequences: int, length: int) -> None:
        layers = [module for module in runner.get_model().modules() if isinstance(module, MoERunner)]
        if not layers:
            raise ValueError("the model has no experts")
        config = runner.model_config
        shape = config.get_total_num_hidden_layers(), config.get_num_experts_per_tok()
        self._runner, self._first = runner, min(layer.layer_id for layer in layers)
        self._routed = np.full((sequences, length, *shape), NOT_RECORDED, dtype=np.int16)
        self._slots: dict[str, int] = {}
        self._free = list(range(sequences))
        for layer in layers:
            layer.router.set_capture_fn(lambda ids_NK, number=layer.layer_id: self._capture(number, ids_NK))

    def take(self, name: str, tokens: int) -> np.ndarray:
        """The record int16 [T, L, K] of a sequence that ended with `tokens` tokens, prompt included."""
        slot = self._slots.pop(name)
        self._free.append(slot)
        return self._routed[slot, :tokens].copy()

    def drop(self, name: str) -> None:
        """Forget a sequence, if it has begun."""
        if name in self._slots:
            self._free.append(self._slots.pop(name))

    def _capture(self, layer: int, ids_NK: torch.Tensor) -> None:
        if layer == self._first:
            self._find_rows()
        here = self._routed[self._rows_N, self._positions_N, layer]
        # A sequence that vLLM dropped and computes again keeps the experts that its tokens were sampled with.
        fresh = ids_NK[: len(here)].numpy().astype(np.int16)
        self._routed[self._rows_N, self._positions_N, layer] = np.where(here == NOT_RECORDED, fresh, here)

    def _find_rows(self) -> None:
        """Map batch rows to (sequence slot, position)."""
        batch = self._runner.input_batch
        count = batch.num_reqs
        start_B = batch.num_computed_tokens_cpu[:count]
        edges = self._runner.query_start_loc.np[: count + 1]
        tokens_B = np.diff(edges)
        slots_B = np.array([self._slot(name) for name in batch.req_ids[:count]])
        self._rows_N = np.repeat(slots_B, tokens_B)
        self._positions_N = np.arange(edges[-1]) - np.repeat(edges[:-1], tokens_B) + np.repeat(start_B, tokens_B)

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            slot = self._slots[name] = self._free.pop()
            self._routed[slot] = NOT_RECORDED
        return self._slots[name]
