"""The experts that a token goes to: the router's best, unless biases or a recording decide.

Router replay sends tokens through the experts that the generator sent them through; a bias per expert sends them to
those that get too few. Both change the choice alone. The weight of a chosen expert is computed from the trainer's own
logits and carries its gradient: what was recorded are facts about the past, while the weights are what is being learnt.

Axes: _T tokens of this rank, _E experts, _K experts per token, _L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.sequences import TrainingSequence
from moe.settings import TrainerSetup


class Choice:
    """One router's choice of experts, called by Megatron as ``Router.router_replay``.

    Attributes:
        experts_TK: int64 [T, K] for the micro-batch at hand, −1 where the router is to choose itself; None for all.
        bias_E: fp32 [E], added to the scores for the choice alone; None for none.
    """

    def __init__(self) -> None:
        self.experts_TK: Tensor | None = None
        self.bias_E: Tensor | None = None

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Choose experts; returns Megatron's (scores, experts), both [T, K], from all scores [T, E]."""
        return self.choose(scores, topk)

    def choose(self, scores_TE: Tensor, topk: int, judged_TE: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(scores, experts) of the prescribed experts, or of the router's own choice where nothing is prescribed.

        Args:
            scores_TE: of all experts.
            topk: how many a token goes to.
            judged_TE: to choose by, where it is not the scores, or their sum with the biases.
        """
        if judged_TE is None and self.bias_E is not None:
            judged_TE = scores_TE.detach() + self.bias_E
        if judged_TE is None:
            top_TK, chosen_TK = scores_TE.topk(topk, dim=1)
        else:
            chosen_TK = judged_TE.topk(topk, dim=1).indices
            top_TK = scores_TE.gather(1, chosen_TK)
        if self.experts_TK is None:
            return top_TK, chosen_TK
        chosen_TK = torch.where(self.experts_TK < 0, chosen_TK, self.experts_TK)
        return scores_TE.gather(1, chosen_TK), chosen_TK


def prescribe(choices: dict[int, Choice], routed_TLK: Tensor | None, part: int, parts: int) -> None:
    """Give the routers of this rank their experts of one micro-batch.

    Args:
        choices: by the number of the layer in the whole model, from 0.
        routed_TLK: what was recorded for the tokens of this rank's stretch; None replays nothing.
        part: which of the stretch's equal parts this rank's routers see (sequence parallelism).
        parts: how many there are.
    """
    for layer, choice in choices.items():
        choice.experts_TK = None if routed_TLK is None else routed_TLK[:, layer].chunk(parts)[part]


def check_replay(sequences: Sequence[TrainingSequence], hf_config: dict[str, Any], config: TrainerSetup) -> None:
    """Refuse routed experts that this model or layout cannot replay.

    Raises:
        MoeError: only some sequences have them, they are of another model, or the layout mixes micro-batches up.
    """
    routed = [s.routed_TLK for s in sequences if s.routed_TLK is not None]
    if not routed:
        return
    if len(routed) < len(sequences):
        raise MoeError(f"{len(routed)} of {len(sequences)} sequences say which experts to replay; all or none must")
    fields = architecture(hf_config).fields
    if "num_moe_experts" not in fields:
        raise MoeError("sequences say which experts to replay, but this model has none; leave routed_TLK out")
    wanted, experts = (fields["num_layers"], fields["moe_router_topk"]), fields["num_moe_experts"]
    wrong = next((r for r in routed if r.shape[1:] != wanted or r.min() < -1 or r.max() >= experts), None)
    if wrong is not None:
        raise MoeError(
            f"routed experts have shape {wrong.shape} and values from {wrong.min()} to {wrong.max()}, but this model "
            f"has {wanted[0]} layers, {wanted[1]} experts per token and experts 0 to {experts - 1}"
        )
    if config.recompute != "none" and config.layout.pipeline > 1:
        raise MoeError(
            "router replay with pipeline stages cannot recompute activations, since a stage recomputes one micro-batch "
            "while it holds another's experts; set TrainerConfig.recompute to 'none'"
        )
