"""How to train: plain values, importable without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from moe.errors import require
from moe.model.kernels import CHOICES

DEVICES = ("auto", "cpu", "gpu")
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """How a model is cut over the ranks; what is left over is data parallel.

    `moe.train.layout.check_layout` says which sizes a model and a number of ranks allow.

    Raises:
        ValueError: if a size is not a positive whole number.
    """

    expert: int = 1
    """Ranks over which the routed experts are spread: any ranks of a stage, tensor- and context-parallel ones, too."""
    tensor: int = 1
    """Ranks that share every matrix outside the experts, and between the matrices the tokens (sequence parallelism)."""
    pipeline: int = 1
    """Ranks that hold consecutive groups of layers."""
    context: int = 1
    """Ranks that share each sequence."""
    expert_tensor: int = 1
    """Ranks that share every expert's matrices."""

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            require(isinstance(size, int) and size >= 1, f"layout.{name} must be at least 1, got {size!r}")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with fp32 state, constant learning rate after a linear warm-up (ScaleRL §2, A.3).

    Raises:
        ValueError: if a value is out of range.
    """

    lr: float = 5e-4
    """Learning rate after the warm-up; the paper's 5e-7 moves an 8B model, not a miniature."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-15
    weight_decay: float = 0.01
    """Decoupled; vectors (norm weights) are exempt."""
    warmup_steps: int = 100
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    max_skipped: int = 5
    """Steps in a row that may be skipped for a gradient that is not finite before training stops; 0 sets no limit."""

    def __post_init__(self) -> None:
        require(self.lr >= 0, f"lr must not be negative, got {self.lr}")
        require(all(0 <= b < 1 for b in self.betas), f"betas must lie in [0, 1), got {self.betas}")
        require(self.eps > 0, f"eps must be positive, got {self.eps}")
        require(self.weight_decay >= 0, f"weight_decay must not be negative, got {self.weight_decay}")
        require(self.warmup_steps >= 0, f"warmup_steps must not be negative, got {self.warmup_steps}")
        require(self.clip_grad >= 0, f"clip_grad must not be negative, got {self.clip_grad}")
        require(self.max_skipped >= 0, f"max_skipped must not be negative, got {self.max_skipped}")


@dataclass(frozen=True)
class TrainerConfig:
    """Everything the trainer needs besides the model.

    Raises:
        ValueError: if a value is out of range.
    """

    layout: Layout = field(default_factory=Layout)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dtype: str = "float32"
    """Type of weights and activations; the optimiser's state and the gradient sums are fp32 either way."""
    fp32_head: bool = True
    """Compute the output product in fp32 (ScaleRL §3.2) rather than in ``dtype``."""
    tokens_per_micro_batch: int = 16384
    """Tokens packed into one forward pass, which context-parallel ranks share; a longer sequence goes alone."""
    balance: float = 0.0
    """Weight of the loss that spreads tokens over the experts (Switch Transformers, §2.2), added to the
    caller's loss. Training a mixture from scratch needs about 0.01, else a few experts take all tokens."""
    z_loss: float = 0.0
    """Weight of the loss that keeps the routers' logits small (ST-MoE, Eq. 5), as a mean over the step's tokens."""
    expert_bias: float = 0.0
    """How far a step moves the bias of every expert, up if it got fewer tokens than the mean and down if it got more:
    balancing without a loss (Wang et al., arXiv 2408.15664, Alg. 1). A bias is added to the logit and decides which
    experts are chosen, not what they weigh. 0 for routers without biases. A run's generators follow."""
    freeze_router: bool = False
    """Leave the routers' weights as they are, so that a token's experts change with its hidden state only."""
    recompute: str = "none"
    """Activations computed again in the backward pass instead of being kept: "none", "selective" (within attention
    and feed-forwards) or "full" (whole layers: each keeps its input alone)."""
    kernels: str = "auto"
    """Whose norms and linear layers: "auto", "local" or "transformer_engine"; see `moe.model.kernels`."""
    head_chunk: int = 1024
    """Tokens whose logits exist at the same time; fewer where the vocabulary makes them more than 256 MiB."""
    seed: int = 0
    """Seed of the initial weights."""
    device: str = "auto"
    """What ranks must train on: "cpu", "gpu", or "auto" for a GPU where CUDA sees one. A run's is Cluster.device."""
    deadline: float = 300.0
    """Seconds a rank waits for the others in any collective operation before it gives up."""
    save_deadline: float = 1800.0
    """Seconds that writing a checkpoint may take."""

    def __post_init__(self) -> None:
        require(
            self.dtype in ("float32", "bfloat16"),
            f"dtype must be 'float32' or 'bfloat16', got {self.dtype!r}",
        )
        require(self.device in DEVICES, f"device must be one of {', '.join(DEVICES)}, got {self.device!r}")
        require(self.recompute in RECOMPUTE, f"recompute must be one of {', '.join(RECOMPUTE)}, got {self.recompute!r}")
        require(self.kernels in CHOICES, f"kernels must be one of {', '.join(CHOICES)}, got {self.kernels!r}")
        for name in ("tokens_per_micro_batch", "head_chunk"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("balance", "z_loss", "expert_bias"):
            require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        require(
            not (self.balance and self.expert_bias),
            "balance and expert_bias are two ways to spread tokens over experts: bind one of them",
        )
        for name in ("deadline", "save_deadline"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
