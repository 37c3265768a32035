"""Training sequences, of NumPy's arrays.

Axes: _T tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moe.errors import MoeError

if TYPE_CHECKING:
    import numpy as np

REFERENCE = "reference"
"""Name of a token's log-probability under the first weights, among the extras that a loss is given."""


@dataclass
class TrainingSequence:
    """One token sequence (prompt and completion) with the values that the loss needs for each token.

    Value ``t`` of an extra belongs to token ``t`` as a *target*, that is to the log-probability of token
    ``t`` given the tokens before it. Token 0 is never predicted: its log-probability is 0, and any weight
    among the extras must be 0 there.

    Attributes:
        tokens_T: token ids, int32 [T], T ≥ 1.
        extras: named values per token, each [T], float32 or integer.
        routed_TLK: experts that each token is sent through (router replay), integers [T, layers, experts per token],
            −1 where the router chooses itself; None: everywhere. All sequences of a step have it, or none.
    """

    tokens_T: np.ndarray
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    routed_TLK: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.tokens_T.ndim != 1 or len(self.tokens_T) == 0:
            raise MoeError(f"a sequence needs at least one token, got an array of shape {self.tokens_T.shape}")
        for name, values in self.extras.items():
            if values.shape != self.tokens_T.shape:
                raise MoeError(
                    f"extra {name!r} has shape {values.shape}, but its sequence has {len(self.tokens_T)} tokens"
                )

        if self.routed_TLK is not None and (self.routed_TLK.ndim != 3 or len(self.routed_TLK) != len(self)):
            raise MoeError(
                f"routed experts have shape {self.routed_TLK.shape}, but their sequence has {len(self)} tokens; give "
                "[tokens, layers, experts per token]"
            )

    def __len__(self) -> int:
        return len(self.tokens_T)
