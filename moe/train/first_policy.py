"""The policy that training began with, kept beside the one that learns: what it thinks of the tokens of every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from moe.model.head import LogProbModel


class FirstPolicy:
    """A copy of this rank's weights as they are now, in their own type.

    Args:
        model: this rank's part of the model; all of its parameters must be here.
    """

    def __init__(self, model: LogProbModel) -> None:
        own = [parameter for parameter in model.parameters() if parameter.requires_grad]
        own += [router.bias_E for router in model.routers if router.bias_E is not None]
        self._copies = [(tensor, tensor.detach().clone()) for tensor in own]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute with the copy while this is entered; no step may be taken then."""
        learning = [tensor.data for tensor, _ in self._copies]
        self._exchange([copy for _, copy in self._copies])
        try:
            yield
        finally:
            self._exchange(learning)

    def _exchange(self, values: list[torch.Tensor]) -> None:
        for (tensor, _), value in zip(self._copies, values, strict=True):
            tensor.data = value
