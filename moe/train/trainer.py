"""One rank of the trainer: steps on packed sequences with any loss, weights out, checkpoints.

Every method that takes part in training is collective: all ranks call it in the same order with the same
arguments. The loss is a plain sum over tokens, so splitting over micro-batches and ranks never changes it.

Axes: _T tokens (of one sequence, or packed), _E experts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from torch import Tensor

from moe.checkpoint import distributed as checkpoint
from moe.checkpoint.folder import CheckpointPolicy
from moe.checkpoint.saver import Saver
from moe.checkpoint.size import save_seconds
from moe.cpu import bfloat16
from moe.cpu import host as cpu_host
from moe.cpu.portable import portable
from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.model.choice import check_replay, prescribe
from moe.model.gpt import build
from moe.model.head import LogProbModel, forward
from moe.model.init import InitialWeights
from moe.model.packing import LOGPROBS, LOSS, LossFunction, MicroBatch, deal, logprobs_of, loss_report
from moe.optimizer import Optimizer
from moe.ranks import parallel
from moe.sequences import REFERENCE, TrainingSequence
from moe.settings import TrainerSetup
from moe.train.first_policy import FirstPolicy
from moe.train.layout import check_layout
from moe.train.metrics import load_metrics, reduce_metrics, take_loads
from moe.train.result import StepResult
from moe.weights import hf_weights
from moe.weights import parcels as weight_parcels
from moe.weights.hf_folder import FolderWeights, read_biases, save_folder
from moe.weights.links import EXPERT_BIAS, shapes
from moe.weights.segments import Segment
from moe.weights.shards import Publisher

WeightSource = str | os.PathLike[str] | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
"""A Hugging Face folder, or whole tensors by their Hugging Face names; biases of experts may be among them."""


class Trainer:
    """This rank's part of a model, with its optimiser: training steps, import and export of weights, checkpoints.

    Args:
        hf_config: the content of a Hugging Face ``config.json``.
        config: layout, optimiser, precision.
        rank: this process among the trainer ranks.
        world: number of trainer processes.
        rendezvous: where they meet, see `moe.ranks.parallel.join`.
        weights: what to start from, as `load_weights` takes it; None draws initial weights from the seed.

    Attributes:
        version: optimiser steps taken.
        skipped: steps skipped for a gradient that was not finite.

    Raises:
        MoeError: if the model is unsupported, the layout does not fit, or the ranks do not meet in time.
    """

    def __init__(
        self,
        hf_config: dict[str, Any],
        config: TrainerSetup,
        rank: int = 0,
        world: int = 1,
        rendezvous: str | None = "tcp://127.0.0.1:29600",
        weights: WeightSource | None = None,
    ) -> None:
        arch = architecture(hf_config)
        check_layout(hf_config, config.layout, world)
        parallel.check_device(config.device)
        parallel.join(config.layout, rank, world, rendezvous, config.deadline)
        self.hf_config, self.config, self.rank, self.world = hf_config, config, rank, world
        self._shares_group = rendezvous is None
        self.version = self.skipped = self._skipped_in_a_row = 0
        self._saver = Saver(save_seconds(hf_config, config))
        self._publisher: Publisher | None = None
        self._chunks = arch.chunks
        try:
            self._build(weights)
        except BaseException:
            self.close()
            raise

    def _build(self, weights: WeightSource | None) -> None:
        if (self.config.dtype == "bfloat16" or portable()) and not torch.cuda.is_available():
            bfloat16.install()
        with cpu_host.megatron():
            self.model = build(self.hf_config, self.config)
            overlap = self.config.overlap_gradients, self.config.overlap_parameters
            self.optimizer = Optimizer(self.model, self.config.optimizer, *overlap)
        if weights is None:  # drawing takes minutes for a large model
            layers = self.hf_config["num_hidden_layers"]
            weights = InitialWeights(shapes(self.hf_config).items(), layers, self.config.seed)
        self.load_weights(weights)
        self._reference = FirstPolicy(self.model) if self.config.reference else None

    def train_step(
        self,
        sequences: Sequence[TrainingSequence],
        loss_fn: LossFunction,
        lr: float | None = None,
        logprobs: bool = False,
    ) -> StepResult:
        """Take one optimiser step on all sequences.

        Args:
            sequences: all of them, the same list on every rank; each rank takes its share.
            loss_fn: called once per micro-batch with packed logprobs_T, entropy_T (fp32, nats) and the
                sequences' extras, packed, `REFERENCE` among them if the setup asks for it; returns the loss
                summed over the tokens, and scalar metrics whose names end in ``_sum``, ``_max`` or ``_min``
                for how they are put together over micro-batches and ranks. Where there is nothing to predict
                (the first token of a sequence) log-probability and entropy are 0, and must weigh nothing.
            lr: learning rate of this step as it is; None takes the config's with its warm-up.
            logprobs: whether the result has every token's log-probability, under the weights before the step.

        Raises:
            MoeError: if a gradient was not finite for the config's ``max_skipped``-th time in a row.
        """
        started = time.perf_counter()
        if self._reference is not None:
            sequences = self._with_reference(sequences, self._reference)
        plan = self._plan(sequences)
        group = parallel_state.get_data_parallel_group()
        self.model.train()
        tokens = sum(len(s) for s in sequences)
        for router in self.model.routers:
            router.step_tokens = tokens
        with cpu_host.megatron(), self._waiting("train_step"):
            self.optimizer.zero_grad()
            mine = plan[self._data_rank]
            reports = self._run(self._my_micro_batches(sequences, mine), partial(loss_report, loss_fn, logprobs))
            kept = self._together(mine, [report.pop(LOGPROBS) for report in reports]) if logprobs else None
            metrics = parallel.from_last_stage(reduce_metrics(reports, group) if reports else None)
            loads = take_loads(self.model.routers)
            norm, taken = self.optimizer.step(self.config.optimizer.rate(self.version) if lr is None else lr)
            if taken:
                for router, load_E in zip(self.model.routers, loads):
                    router.move_bias(load_E, self.config.expert_bias)
            metrics.update(load_metrics(loads))
        loss = metrics.pop(LOSS)
        self.version += taken
        self.skipped += not taken
        self._skipped_in_a_row = 0 if taken else self._skipped_in_a_row + 1
        if 0 < self.config.optimizer.max_skipped <= self._skipped_in_a_row:
            raise MoeError(self.optimizer.why_skipped(self._skipped_in_a_row, loss, norm))
        return StepResult(
            loss=loss,
            grad_norm=norm,
            metrics=metrics,
            tokens=tokens,
            seconds=time.perf_counter() - started,
            skipped=not taken,
            peak_gib=parallel.most_memory(self._device) / 2**30,
            logprobs=kept,
        )

    def _with_reference(self, sequences: Sequence[TrainingSequence], first: FirstPolicy) -> list[TrainingSequence]:
        """Sequences with their log-probabilities under the first weights, which choose their own experts."""
        self._whole_model()
        with first.in_place():
            found = self.logprobs([replace(one, routed_TLK=None) for one in sequences])
        pairs = zip(sequences, found, strict=True)
        return [replace(one, extras={**one.extras, REFERENCE: logprobs_T}) for one, logprobs_T in pairs]

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        """Log-probability of every token given those before it.

        Returns:
            For each sequence float32 [T], 0 for its first token; the same on every rank.
        """
        self.model.eval()
        plan = self._plan(sequences)[self._data_rank]
        with cpu_host.megatron(), self._waiting("logprobs"):
            outputs = self._run(self._my_micro_batches(sequences, plan), logprobs_of, forward_only=True)
            return self._together(plan, outputs)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight, then every bias of experts, as (name, whole tensor on the CPU); collective, so walk to its end.

        The tensors may share memory with the model: copy what you keep beyond the next step.
        """
        with self._waiting("export_weights"):
            yield from hf_weights.export(self._whole_model(), self.hf_config)
            yield from hf_weights.expert_biases(self.model, self.hf_config).items()

    def parcels(self, limit: int) -> list[weight_parcels.Parcel]:
        """The parcels of `export_parcels`; not collective.

        Args:
            limit: bytes of a vocabulary's rows that are sent at once.
        """
        itemsize = getattr(torch, self.config.dtype).itemsize
        return weight_parcels.parcels(self.hf_config, self.config.layout, itemsize, limit)

    def export_parcels(self, limit: int) -> Iterator[tuple[str, Tensor]]:
        """Every weight in parcels, then every bias of experts; collective, so walk to its end.

        The tensors are on the model's device, and may share memory with the model (see `moe.weights.parcels.walk`).
        """
        with self._waiting("export_parcels"):
            yield from weight_parcels.walk(self._whole_model(), self.hf_config, self.parcels(limit))
            for name, bias_E in hf_weights.expert_biases(self.model, self.hf_config).items():
                yield name, bias_E.to(self._device)

    def publish(self, version: int, host: str = "127.0.0.1", machine: str | None = None) -> Segment:
        """Write this rank's share of the weights for generators to read, in place of the last; not collective.

        Args:
            version: policy version.
            host: address at which other machines reach this one, the same each time.
            machine: name of this machine, the same each time; None for `moe.weights.shards.this_machine`.

        Raises:
            MoeError: there is no room for the share in memory.
        """
        if self._publisher is None:
            self._publisher = Publisher(host, machine=machine)
        return self._publisher.publish(version, self.rank, hf_weights.own_parts(self._whole_model(), self.hf_config))

    def load_weights(self, weights: WeightSource) -> None:
        """Set the weights from a Hugging Face folder or from (name, tensor) pairs; the optimiser is kept.

        Biases of experts come from a folder that `save_hf` wrote, or with the pairs; else they are 0.

        Raises:
            MoeError: naming a missing, extra or misshapen tensor.
        """
        if isinstance(weights, (str, os.PathLike)):
            biases, weights = read_biases(weights), FolderWeights(weights)
        else:
            weights = weights if isinstance(weights, Mapping) else dict(weights)
            biases = {name: weights[name] for name in weights if name.endswith(EXPERT_BIAS)}
        hf_weights.load(self._whole_model(), self.hf_config, weights, biases)
        with cpu_host.megatron():
            self.optimizer.reload_weights()

    def save_hf(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that transformers and vLLM load; collective, rank 0 writes.

        Biases of experts, if there are any, lie beside the weights in a file that only this package reads.
        """
        with self._waiting("save_hf"):
            biases = hf_weights.expert_biases(self.model, self.hf_config)
        weights = hf_weights.export(self._whole_model(), self.hf_config)
        with self._waiting("save_hf"), parallel.one_does(f"write the model to {folder}") as first:
            try:
                if first:
                    save_folder(folder, self.hf_config, weights, shapes(self.hf_config), biases=biases)
            finally:
                for _ in weights:  # every rank takes part to the end, rank 0 after a failure, too
                    pass

    def save(
        self,
        path: str | os.PathLike[str],
        state: dict[str, Any] | None = None,
        background: bool = False,
        keep: CheckpointPolicy | None = None,
    ) -> None:
        """Write a checkpoint of model, optimiser, counters and random state; collective.

        Args:
            path: its folder; one already there is replaced when the new one is complete.
            state: the caller's own, as JSON has it; `moe.checkpoint.folder.read_state` reads it.
            background: return when all is copied to host memory and write while training goes on. A checkpoint
                still being written is waited for first; its failure is raised here, or by `saving`.
            keep: which checkpoints in the same folder stay once this one is whole; None keeps all.

        Raises:
            MoeError: if this one, or the one before it, cannot be written; what was at its path is still there.
        """
        self.finish_saving()
        counters = {"version": self.version, "skipped": self.skipped, "in_a_row": self._skipped_in_a_row}
        with cpu_host.megatron(), self._waiting("save"):
            staged = checkpoint.stage(
                path, self._whole_model(), self.optimizer, self.hf_config, self.config.layout, counters, state, keep
            )
        self._saver.start(staged, background)

    def saving(self) -> str | None:
        """The checkpoint being written in the background now; not collective.

        Raises:
            MoeError: if the last one could not be written; the next collective `save` or `finish_saving` says so, too.
        """
        path = self._saver.running()
        return None if path is None else str(path)

    def finish_saving(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            MoeError: if the last one could not be written, or takes longer than `save_seconds` allows.
        """
        self._saver.finish()

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint written at any layout; collective.

        Args:
            path: its folder.

        Raises:
            MoeError: naming what is missing, truncated, changed, or of another model.
        """
        with cpu_host.megatron(), self._waiting("load"):
            checkpoint.verify(Path(path), self.hf_config)
            counters = checkpoint.load(Path(path), self._whole_model(), self.optimizer, self.config.layout)
        self.version, self.skipped, self._skipped_in_a_row = (counters[n] for n in ("version", "skipped", "in_a_row"))

    def close(self) -> None:
        """Finish writing what is being written, leave the group of ranks, and give the model's memory back."""
        try:
            self.finish_saving()
        finally:
            if self._publisher is not None:
                self._publisher.close()
            parallel.leave(self._shares_group)
            if "optimizer" in self.__dict__:
                self.optimizer.release()
            for held in ("model", "optimizer"):
                self.__dict__.pop(held, None)
            gc.collect()  # the model's cycles hold the groups, and each of those three threads

    def _whole_model(self) -> LogProbModel:
        """The model when all parameters of its last step are here; whatever reads or sets weights asks for this."""
        with self._waiting("gathering its parameters"):
            self.optimizer.wait_for_parameters()
        return self.model

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def _data_rank(self) -> int:
        return parallel_state.get_data_parallel_rank()

    def _plan(self, sequences: Sequence[TrainingSequence]) -> list[list[list[int]]]:
        if not sequences:
            raise MoeError("there are no sequences; give at least one")
        lengths = [len(s) for s in sequences]
        limit = self.hf_config["max_position_embeddings"]
        if max(lengths) > limit:
            raise MoeError(f"a sequence of {max(lengths)} tokens exceeds max_position_embeddings = {limit}")
        check_replay(sequences, self.hf_config, self.config)
        ranks = parallel_state.get_data_parallel_world_size()
        return deal(lengths, ranks, self.config.tokens_per_micro_batch)

    def _my_micro_batches(self, sequences: Sequence[TrainingSequence], plan: list[list[int]]) -> list[MicroBatch]:
        share = parallel.share_of_row()
        return [
            MicroBatch([sequences[i] for i in indices], sequences[0], self._chunks, self._device, share)
            for indices in plan
        ]

    def _run(
        self, micro_batches: list[MicroBatch], report: Callable[..., Any], forward_only: bool = False
    ) -> list[Any]:
        """Run Megatron's schedule over the micro-batches; returns ``report``'s value for each output."""

        part, parts = parallel_state.get_tensor_model_parallel_rank(), self.config.layout.tensor
        choices = {router.layer_number - 1: router.router_replay for router in self.model.routers}

        def step(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            batch = next(batches)
            prescribe(choices, batch.packed.routed_TLK, part, parts)
            return forward(model, batch.packed), partial(report, batch)

        return get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(micro_batches),
            model=[self.optimizer.ddp],
            num_microbatches=len(micro_batches),
            seq_length=self.config.tokens_per_micro_batch,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _together(self, plan: list[list[int]], mine: list[list[np.ndarray]]) -> list[np.ndarray]:
        """Gather the log-probabilities of all ranks' sequences, in the order of the sequences; collective.

        Args:
            plan: indices of this rank's sequences, for each micro-batch.
            mine: their log-probabilities; nothing before the last pipeline stage.
        """
        group = parallel_state.get_data_parallel_group()
        shares: list[dict[int, np.ndarray]] = [{} for _ in range(group.size())]
        own = {i: logprobs_T for indices, parts in zip(plan, mine) for i, logprobs_T in zip(indices, parts)}
        dist.all_gather_object(shares, own, group=group)
        everyone = {i: logprobs_T for share in parallel.from_last_stage(shares) for i, logprobs_T in share.items()}
        return [everyone[i] for i in range(len(everyone))]

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Name the ranks and the operation when a collective operation breaks or runs out of time."""
        try:
            yield
        except RuntimeError as error:
            if not any(word in str(error) for word in ("Timed out", "timed out", "Connection", "gloo")):
                raise
            raise MoeError(
                f"trainer rank {self.rank} of {self.world} lost the others in {what} "
                f"(deadline {self.config.deadline:.0f} s); look for the first error of another rank: {error}"
            ) from error
