"""Settings of the trainer: plain values, importable without torch."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SkipValidation
from pydantic.dataclasses import dataclass

from moe.checked import CHECKED
from moe.errors import require

if TYPE_CHECKING:
    from torch import Tensor

KernelChoice = Literal["auto", "local", "transformer_engine"]
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)

LOGITS_AT_ONCE = 2**26
"""Most logits that exist at the same time: 256 MiB in fp32."""

STABLE = 0.8
"""Share of the steps after the warm-up for which "wsd" keeps the learning rate."""

Beta = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=CHECKED)
class Layout:
    """Cuts of a model over the ranks; the remaining factor is data parallel.

    `moe.train.layout.check_layout` says which sizes a model and a number of ranks allow.

    Raises:
        ValueError: if a size is not a positive whole number.
    """

    expert: PositiveInt = 1
    """Ranks over which the routed experts are spread: any ranks of a stage, tensor- and context-parallel ones, too."""
    tensor: PositiveInt = 1
    """Ranks that share every matrix outside the experts, and between the matrices the tokens (sequence parallelism)."""
    pipeline: PositiveInt = 1
    """Ranks that hold consecutive groups of layers."""
    context: PositiveInt = 1
    """Ranks that share each sequence."""
    expert_tensor: PositiveInt = 1
    """Ranks that share every expert's matrices."""


class UpdateRule(Protocol):
    """Protocol of optimisers of the user's own, in AdamW's place: frozen settings with a rule for each number.

    A rank holds any stretch of a parameter, flat, so a rule looks at each number alone. Its memory are two fp32 numbers
    for each, which begin at 0 and are kept in checkpoints; it may use one, or none.
    """

    def update(
        self, values: Tensor, gradient: Tensor, first: Tensor, second: Tensor, *, step: int, lr: float, decay: float
    ) -> None:
        """Change values and memory in place.

        Args:
            values: a stretch of a parameter, fp32.
            gradient: of it, clipped.
            first: memory.
            second: memory.
            step: counted from 1.
            lr: the step's learning rate.
            decay: weight decay; 0 for vectors.
        """
        ...


@dataclass(frozen=True, config=CHECKED)
class OptimizerConfig:
    """AdamW with fp32 state; a linear warm-up, then a constant learning rate (ScaleRL §2, A.3) or one that falls.

    The paper gives lr, eps, weight decay and warm-up; betas and the clip of the gradient's norm are this lab's choice.

    Raises:
        ValueError: if a value is out of range.
    """

    lr: NonNegativeFloat = 5e-4
    """Learning rate after the warm-up; the paper's 5e-7 moves an 8B model, not a miniature."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: PositiveFloat = 1e-15
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled; vectors (norm weights) are exempt. At lr 5e-7 in fp32 it is below the last digit of any weight."""
    warmup_steps: NonNegativeInt = 100
    decay: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Course of the learning rate after the warm-up: "constant", "linear", "cosine" (SGDR, arXiv 1608.03983, one cycle)
    or "wsd", constant and then linear over the last fifth (warm-up, stable, decay: MiniCPM, arXiv 2404.06395)."""
    decay_until: PositiveInt | None = None
    """Optimiser step at which the decay ends, usually `Budget.steps`; the rate stays there afterwards."""
    lr_at_end: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate after the decay, as a share of `lr`."""
    clip_grad: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    max_skipped: NonNegativeInt = 5
    """Steps in a row that may be skipped for a gradient that is not finite before training stops; 0 sets no limit."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """Type of AdamW's two moments. "bfloat16" takes 6 bytes a parameter instead of 12 (the weights' missing 16 bits are
    kept beside them); it needs bfloat16 weights, a GPU and Transformer Engine's AdamW."""
    offload: bool = False
    """Keep fp32 weights and moments in host memory and take the step there (Megatron's hybrid optimiser): 16 bytes a
    parameter of the rank's share on the host, none on the GPU. It needs bfloat16 weights."""

    rule: SkipValidation[UpdateRule] | None = None
    """The user's own optimiser, in AdamW's place: then `betas` and `eps` have no meaning."""

    def __post_init__(self) -> None:
        require(
            self.rule is None or not (self.offload or self.moments != "float32"),
            "OptimizerConfig.rule keeps its memory in float32 beside the weights: leave offload and moments out",
        )
        require(
            not (self.offload and self.moments != "float32"),
            "OptimizerConfig.offload keeps its state in float32: bind OptimizerConfig.moments = 'float32'",
        )
        until = self.decay_until
        require(
            (self.decay == "constant") == (until is None),
            f"OptimizerConfig.decay = {self.decay!r} with decay_until = {until}: bind both (decay_until to the run's "
            "Budget.steps, say) for a learning rate that falls, or neither",
        )
        require(
            until is None or until > self.warmup_steps,
            f"OptimizerConfig.decay_until ({until}) must come after warmup_steps ({self.warmup_steps})",
        )

    def rate(self, step: int) -> float:
        """Learning rate of an optimiser step.

        With w warm-up steps, peak r, end e·r at step u, and x = (s − w) / (u − w), cut to [0, 1], for step s from 0:
        r · min(1, (s + 1) / w) · (1 − (1 − e) · f(x)), where f(x) is 0, x, (1 − cos πx) / 2 or max(0, 5x − 4).
        """
        rising = min(1.0, (step + 1) / max(1, self.warmup_steps))
        if self.decay_until is None:
            return self.lr * rising
        along = min(max((step - self.warmup_steps) / (self.decay_until - self.warmup_steps), 0.0), 1.0)
        fallen = {
            "linear": along,
            "cosine": (1 - math.cos(math.pi * along)) / 2,
            "wsd": max(0.0, (along - STABLE) / (1 - STABLE)),
        }[self.decay]
        return self.lr * rising * (1 - (1 - self.lr_at_end) * fallen)


@dataclass(frozen=True, config=CHECKED)
class TrainerConfig:
    """Settings of the trainer that belong to nothing else.

    Raises:
        ValueError: if a value is out of range.
    """

    layout: Layout = field(default_factory=Layout)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and activations; gradient sums are fp32 either way, and so is the optimiser's state unless
    `OptimizerConfig.moments` says otherwise."""
    tokens_per_micro_batch: PositiveInt = 16384
    """Tokens packed into one forward pass, which context-parallel ranks share; a longer sequence goes alone."""
    balance: NonNegativeFloat = 0.0
    """Weight of the loss that spreads tokens over the experts (Switch Transformers, §2.2), added to the
    caller's loss. Training a mixture from scratch needs about 0.01, else a few experts take all tokens."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the loss that keeps the routers' logits small (ST-MoE, Eq. 5), as a mean over the step's tokens."""
    expert_bias: NonNegativeFloat = 0.0
    """Change of each expert's bias per step, up if it got fewer tokens than the mean and down if it got more:
    balancing without a loss (Wang et al., arXiv 2408.15664, Alg. 1). A bias is added to the logit and decides which
    experts are chosen, not what they weigh. 0 for routers without biases. A run's generators follow."""
    freeze_router: bool = False
    """Leave the routers' weights as they are, so that a token's experts change with its hidden state only."""
    recompute: Recompute = "none"
    """Activations computed again in the backward pass instead of being kept: "none", "selective" (within attention
    and feed-forwards) or "full" (whole layers: each keeps its input alone)."""
    overlap_gradients: bool = False
    """Exchange gradients between data-parallel ranks while the last backward pass goes on, bucket by bucket."""
    overlap_parameters: bool = False
    """Gather the parameters of a step while what follows goes on, bucket by bucket; needs ``overlap_gradients``, which
    cuts the buckets. Publishing waits for all of them, so it helps where not every step is published."""
    kernels: KernelChoice = "auto"
    """Library of norms and linear layers: "auto", "local" or "transformer_engine"; see `moe.model.kernels`."""
    head_chunk: PositiveInt = 1024
    """Tokens whose logits exist at the same time; fewer where the vocabulary makes them more than 256 MiB."""
    deadline: PositiveFloat = 300.0
    """Seconds a rank waits for the others in any collective operation before it gives up."""
    save_deadline: PositiveFloat = 1800.0
    """Seconds that writing a checkpoint may take beside those of its bytes on a slow disk (`moe.checkpoint.size`)."""

    def __post_init__(self) -> None:
        require(
            not (self.balance and self.expert_bias),
            "balance and expert_bias are two ways to spread tokens over experts: bind one of them",
        )
        require(
            self.overlap_gradients or not self.overlap_parameters,
            "overlap_parameters needs the buckets of overlap_gradients: bind TrainerConfig.overlap_gradients = True",
        )
        saved = [name for name in self.gpu_only if name.startswith("OptimizerConfig")]
        require(
            not saved or self.dtype == "bfloat16",
            f"{' and '.join(saved)} saves memory of bfloat16 models: bind TrainerConfig.dtype = 'bfloat16'",
        )

    @property
    def packages(self) -> dict[str, str]:
        """Modules that settings of this configuration need beside the pinned ones, with the setting that needs each."""
        found = {}
        if self.optimizer.moments != "float32":
            found["transformer_engine"] = f"OptimizerConfig.moments = {self.optimizer.moments!r}"
        if self.kernels == "transformer_engine":
            found["transformer_engine"] = f"TrainerConfig.kernels = {self.kernels!r}"
        return found

    @property
    def gpu_only(self) -> tuple[str, ...]:
        """Settings of this configuration that have a meaning on GPUs only, as `CLASS.FIELD = VALUE`."""
        found = []
        if self.optimizer.moments != "float32":
            found.append(f"OptimizerConfig.moments = {self.optimizer.moments!r}")
        if self.optimizer.offload:
            found.append("OptimizerConfig.offload = True")
        if self.kernels == "transformer_engine":
            found.append(f"TrainerConfig.kernels = {self.kernels!r}")
        return tuple(found)


@dataclass(frozen=True, config=CHECKED)
class TrainerSetup(TrainerConfig):
    """Settings that a trainer is built with: its own, and those that other parts of a run decide."""

    reference: bool = False
    """Keep the first weights, too, and give the loss every token's log-probability under them."""
    fp32_head: bool = True
    """Compute the output product in fp32 (ScaleRL §3.2) rather than in ``dtype``."""
    seed: int = 0
    """Seed of the initial weights."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of the ranks: "cpu", "gpu", or "auto" for a GPU where CUDA sees one."""
