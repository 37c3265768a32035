"""Rehearse one trainer rank at full size on fake tensors: build, load, a step, export.

A rank of RL, or of the fine-tuning before it (`scalelab.rehearse.tuner`): the same trainer, set up for other work.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalelab.rehearse.simulate import Answers, SimulatedDevice, simulated  # isort: skip  (sets torch's environment first)

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from moe.model.architectures import architecture
from moe.model.packing import LOSS, LossFunction
from moe.sequences import TrainingSequence
from moe.settings import KernelChoice, TrainerSetup
from moe.train.trainer import Trainer
from moe.weights.hf_folder import FolderWeights
from moe.weights.links import expert_bias_names, shapes
from scalelab.hardware import Device
from scalelab.recipe.step import StepLoss
from scalelab.rehearse import planned
from scalelab.rehearse.collectives import Collectives
from scalelab.rehearse.explain import explain
from scalelab.rehearse.flops import Flops
from scalelab.rehearse.memory import Memory
from scalelab.rehearse.result import GIB, Phase, RoleResult
from scalelab.rehearse.roles import Role
from scalelab.rehearse.setting import RehearsalSettings
from scalelab.rehearse.te_shapes import rehearsed_version
from scalelab.rehearse.watching import Watching
from scalelab.transfer.sizes import PARCEL

_ON_HOST = ("build", "load", "export")
"""Phases with tensors on the host, too: initial weights, those of files, whole tensors on their way out."""


@dataclass(frozen=True)
class Training:
    """Setup of a trainer, and the work that it then does: all that the rehearsal of a rank depends on, but the rank.

    Attributes:
        hf: config.json of the model.
        hardware: the GPU that is simulated; "cpu" takes the CPU's kernels.
        imbalance: tokens that a rank's experts get, as a multiple of their even share.
        setup: its settings.
        ranks: trainer ranks.
        folder: the Hugging Face folder that it starts from; None for weights of the config's names and shapes.
        at_random: whether those are random ones.
        longest: tokens of the longest sequence.
        sequence: makes one, of so many tokens and with a number.
        loss: of a step; None takes none.
        lr: of a step; None takes the optimiser's.
        held_out: whether it computes the log-probabilities of sequences before its first step.
        publication: way of the weights out, as `Cluster.publication`.
        micro_batches: of a rank's step, by which exchanges are counted.
    """

    hf: dict[str, Any]
    hardware: Device
    imbalance: float
    setup: TrainerSetup
    ranks: int
    folder: str | None
    at_random: bool
    longest: int
    sequence: Callable[[int, int], TrainingSequence]
    loss: LossFunction | None
    lr: float | None
    held_out: bool
    publication: str
    micro_batches: int


def rehearse(setting: RehearsalSettings, role: Role) -> RoleResult:
    """Run all phases of one trainer rank of RL; errors are recorded, not raised."""
    return rehearse_training(subject(setting), role)


def subject(setting: RehearsalSettings) -> Training:
    """The training of RL, as far as a rehearsal sees it."""
    run = setting.run
    hf, routed = run.model.to_hf(), tuple[int, ...]()
    if run.recipe.router_replay:
        routed = hf["num_hidden_layers"], architecture(hf).fields["moe_router_topk"]
    return Training(
        hf=hf,
        hardware=setting.hardware,
        imbalance=setting.imbalance,
        setup=run.trainer_setup,
        ranks=run.cluster.trainers,
        folder=run.sft.pretrained if run.sft.traces is None else None,  # else it starts from what is fine-tuned
        at_random=run.sft.pretrained is None,
        longest=run.generator.max_model_len,
        sequence=_Completions(routed),
        loss=StepLoss(run.recipe.loss),
        lr=None,
        held_out=False,
        publication=run.cluster.publication,
        micro_batches=setting.micro_batches,
    )


def rehearse_training(training: Training, role: Role) -> RoleResult:
    """Run all phases of one trainer rank, whatever it trains for; errors are recorded, not raised."""
    result = RoleResult(role.name, role.kind, role.stands_for, micro_batches=training.micro_batches)
    with tempfile.TemporaryDirectory(prefix="scalelab-rehearsal-") as folder:
        _TrainerRehearsal(training, role, result, Path(folder)).run()
    return result


class _TrainerRehearsal:
    def __init__(self, training: Training, role: Role, result: RoleResult, folder: Path) -> None:
        self.training, self.role, self.result, self.folder = training, role, result, folder
        self.hf = training.hf
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.config = self._rehearsable(training.setup)
        self.ranks = training.ranks
        layout = self.config.layout
        self.data = self.ranks // (layout.tensor * layout.pipeline * layout.context)
        self.row = micro_batch(training.longest, self.config.tokens_per_micro_batch)
        self.memory, self.collectives = Memory(self.device), Collectives()
        self.watching = Watching(collectives=self.collectives, memory=self.memory)
        self.trainer: Trainer | None = None

    def run(self) -> None:
        """Run all phases, up to the first that fails."""
        result, layout = self.result, self.config.layout
        fields = architecture(self.hf).fields
        split = layout.context * layout.tensor
        world = SimulatedDevice(
            self.training.hardware,
            fields.get("moe_router_topk", 0),
            self.training.imbalance,
            (-(-sum(self.row) // split), 1, self.hf["hidden_size"]),
            {LOSS: 0.0},
        )
        result.longest_row = max(self.row)
        longest, exports = self.training.longest, self.device == "cuda"
        result.plan_memory_gib = planned.trainer_gib(
            self.hf, self.training.setup, self.ranks, longest, self.role.stage, exports
        )
        result.plan_flops = planned.trainer_flops(self.hf, self.config, self.row, self.role.stage)
        steps: dict[str, Callable[[], None]] = {
            "build": self._build,
            "load": self._load,
            **({"held out": self._held_out} if self.training.held_out else {}),
            **({"step": self._step} if self.training.loss else {}),
            "export": self._export,
        }
        self._say_what_is_left_out(fields)
        self.watching.answers = Answers(world)
        with simulated(world), self.watching:
            for name, do in steps.items():
                if not self._phase(name, do):
                    break
            if self.trainer is not None:
                self.trainer.close()
                self.trainer = None

    def _rehearsable(self, config: TrainerSetup) -> TrainerSetup:
        """The run's configuration, without what needs packages for GPUs or a device of its own label."""
        left, optimizer = self.result.replaced, config.optimizer
        moments = optimizer.moments
        if moments != "float32" and not rehearsed_version():
            moments = "float32"
            left.append("moments in bfloat16, which are Transformer Engine's: rehearsed with fp32")
        if optimizer.offload and self.device == "cpu":
            left.append("the optimiser on the host, which needs a simulated CUDA device: rehearsed on the device")
        optimizer = replace(optimizer, moments=moments, offload=optimizer.offload and self.device == "cuda")
        # Transformer Engine is not everywhere, see `scalelab.rehearse.te_shapes`
        if self.training.hardware.gpu and config.kernels != "local" and not rehearsed_version():
            needed = "which need a simulated CUDA device (docs/rehearse.md)"
            left.append(f"Transformer Engine's layers, {needed}: rehearsed are the local ones")
        kernels: KernelChoice = "local" if config.kernels == "local" else "auto"
        # what device is there is simulated
        return replace(config, device="auto", kernels=kernels, optimizer=optimizer)

    def _say_what_is_left_out(self, fields: dict[str, Any]) -> None:
        left = self.result.not_rehearsed
        if self.training.hardware.gpu and self.device == "cpu":
            left.append("which device a tensor is on, and memory of build, load and export: see docs/rehearse.md")
        if "num_moe_experts" in fields and self.training.imbalance == 1:
            left.append("uneven routing: every expert gets its even share; try --imbalance")
        left.append("numbers, kernels' own workspaces, fragmentation, checkpoints")

    def _phase(self, name: str, do: Callable[[], None]) -> bool:
        started = time.perf_counter()
        phase = Phase(name, True, 0.0)
        with self.memory.phase() as peak:
            try:
                do()
            except Exception as error:  # whatever breaks is what a rehearsal is for
                phase.ok = False
                self.result.problems.append(f"{name}: {explain(error)}")
        phase.seconds, phase.peak_gib = time.perf_counter() - started, peak.bytes / GIB
        if name in _ON_HOST and self.device == "cpu":
            phase.peak_gib = 0.0  # with one label for both, tensors on the host cannot be told from those on the device
        if phase.peak_gib > self.result.peak_gib:
            self.result.memory_gib = {kind: size / GIB for kind, size in peak.kinds.items()}
        self.result.phases.append(phase)
        return phase.ok

    def _build(self) -> None:
        self.trainer = Trainer(self.hf, self.config, self.role.rank, self.ranks, f"file://{self.folder}/meeting")
        self.collectives.groups.update(_group_names(self.config.layout.context > 1))
        optimizer = self.trainer.optimizer
        buffers = optimizer.ddp.buffers + optimizer.ddp.expert_parallel_buffers
        self.memory.classify("gradients", (buffer.grad_data for buffer in buffers))
        on_host = self.training.setup.optimizer.offload and not self.config.optimizer.offload
        for part in optimizer.megatron.chained_optimizers:
            for main, state in part.optimizer.state.items():
                if on_host:
                    self.memory.leave([main, *state.values()])
                self.memory.classify("optimizer", [main, *state.values()])
        self.memory.classify("weights", [buffer.param_data for buffer in buffers])
        self.memory.classify("weights", self.trainer.model.parameters())
        if self.trainer._reference is not None:
            self.memory.classify("reference", [copy for _, copy in self.trainer._reference._copies])

    def _load(self) -> None:
        assert self.trainer is not None
        folder = self.training.folder
        if folder and (Path(folder) / "config.json").is_file():
            found = {name: tuple(shape) for name, shape in FolderWeights(folder).shapes.items()}
        else:
            found = {name: tuple(shape) for name, shape in shapes(self.hf).items()}
            if folder:
                instead = "which is not here: names and shapes are the config's"
                self.result.not_rehearsed.append(f"the tensors of SFT.pretrained ({folder}), {instead}")
            elif self.training.at_random:
                self.result.not_rehearsed.append("pretrained weights: the run starts from random ones")
        self.trainer.load_weights(_Files(found, getattr(torch, self.config.dtype)))

    def _sequences(self) -> list[TrainingSequence]:
        """Full rows for every data-parallel rank, as many as there are stages."""
        lengths = self.row * self.data * self.config.layout.pipeline
        return [self.training.sequence(length, number) for number, length in enumerate(lengths)]

    def _held_out(self) -> None:
        assert self.trainer is not None
        self.trainer.logprobs(self._sequences())

    def _step(self) -> None:
        assert self.trainer is not None
        assert self.training.loss is not None
        trainer, stages = self.trainer, self.config.layout.pipeline
        finish = trainer.model.config.finalize_model_grads_func

        def finalize(*args: Any, **kwargs: Any) -> None:
            self.collectives.per_micro_batch = False
            finish(*args, **kwargs)

        trainer.model.config.finalize_model_grads_func = finalize
        sequences = self._sequences()
        self.collectives.forget()
        self.collectives.per_micro_batch = True
        self.watching.flops = flops = Flops(self.row)
        trainer.train_step(sequences, self.training.loss, self.training.lr)
        self.watching.flops = None
        self.result.flops = flops.total / stages
        exchanges = self.collectives.of_a_step(stages, self.training.micro_batches)
        self.result.collectives = [vars(exchange) for exchange in exchanges]

    def _export(self) -> None:
        assert self.trainer is not None
        way, biased = self.training.publication, self.config.expert_bias > 0
        biases = [name for name in expert_bias_names(self.hf).values() if biased and self._is_here(name)]
        wanted: dict[str, tuple[int, ...]] = dict.fromkeys(
            biases, (architecture(self.hf).fields.get("num_moe_experts", 0),)
        )
        if way == "files":
            wanted |= {name: tuple(shape) for name, shape in shapes(self.hf).items() if self._is_here(name)}
            walk = self.trainer.export_weights()
        else:
            with unset_fake_temporarily():  # which takes longer for every view
                parts = [part for parcel in self.trainer.parcels(PARCEL) for part in parcel.parts()]
            wanted |= {name: tuple(shape) for name, shape in parts}
            walk = self.trainer.export_parcels(PARCEL)
        self.collectives.forget()
        found = {name: tuple(tensor.shape) for name, tensor in walk}
        if wrong := {name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)}:
            name = min(wrong)
            raise ValueError(f"{name} comes out as {found.get(name)}, the config says {wanted.get(name)}")
        if way != "files":  # for which nothing is exchanged
            self.result.publication = [vars(exchange) for exchange in self.collectives.of_a_step(1, 1)]

    def _is_here(self, name: str) -> bool:
        """True if this pipeline stage exports the tensor."""
        stages = self.config.layout.pipeline
        if name.startswith("model.layers."):
            return int(name.split(".")[2]) * stages // self.hf["num_hidden_layers"] == self.role.stage
        return self.role.stage == (0 if name.startswith("model.embed_tokens.") else stages - 1)


class _Files(Mapping[str, Tensor]):
    """Tensors as a folder gives them: on the host, when asked for."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        self._shapes, self._dtype = shapes, dtype

    def __getitem__(self, name: str) -> Tensor:
        return torch.empty(self._shapes[name], dtype=self._dtype, device="cpu")

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def micro_batch(longest: int, budget: int) -> list[int]:
    """Lengths of the sequences of one full micro-batch: longest ones, and one shorter that fills the rest."""
    whole, rest = divmod(max(budget, longest), longest)
    return [longest] * whole + ([rest] if rest else [])


@dataclass(frozen=True)
class _Completions:
    """Maker of completions as the recipe hands them to the trainer.

    Attributes:
        routed: layers, and experts per token, of the record that comes with each (router replay); none without one.
    """

    routed: tuple[int, ...] = ()

    def __call__(self, tokens: int, number: int) -> TrainingSequence:
        names = ("old_logprobs", "advantages", "weights", "same_version")
        extras: dict[str, np.ndarray] = {name: np.ones(tokens, np.float32) for name in names}
        extras["sequence_ids"] = np.full(tokens, number, np.int64)
        record_TLK = None
        if self.routed:
            layers, chosen = self.routed
            record_TLK = np.tile(np.arange(chosen, dtype=np.int16), (tokens, layers, 1))
        return TrainingSequence(np.zeros(tokens, np.int32), extras, record_TLK)


def _group_names(context: bool) -> dict[str, str]:
    """Readable names of Megatron's groups, by torch's; without context parallelism several are the same ranks."""
    state = parallel_state
    named = {
        "pipeline": state.get_pipeline_model_parallel_group(),
        "model": state.get_model_parallel_group(),
        "data": state.get_data_parallel_group(),
        "tensor-data": state.get_tensor_and_data_parallel_group(),
        "data-context": state.get_data_parallel_group(with_context_parallel=True),
        "tensor-data-context": state.get_tensor_and_data_parallel_group(with_context_parallel=True),
        "expert-data": state.get_expert_data_parallel_group(),
        "expert-tensor": state.get_expert_tensor_parallel_group(),
        "experts' ranks": state.get_expert_tensor_and_model_parallel_group(),
        "expert-tensor-pipeline": state.get_expert_tensor_model_pipeline_parallel_group(),
        "tensor-context": state.get_tensor_and_context_parallel_group(),
        "context": state.get_context_parallel_group(),
        "expert": state.get_expert_model_parallel_group(),
        "tensor": state.get_tensor_model_parallel_group(),
        "all": state.get_intra_distributed_optimizer_instance_group(),
    }
    return {g.group_name: name if context else name.replace("-context", "") for name, g in named.items()}
