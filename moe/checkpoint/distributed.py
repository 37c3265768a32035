"""Megatron distributed checkpoints: model, optimiser, scheduler position and random state, loadable at another layout.

Tensors are written whole-model-wise ("fully reshardable"), so that a checkpoint of any layout loads at any other.
`moe.checkpoint.saver` writes what is staged here; `moe.checkpoint.folder` knows which folders are whole, without torch.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.torch import (
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException

from moe.checkpoint.folder import (
    CheckpointPolicy,
    Manifest,
    check_files,
    check_model,
    read_manifest,
)
from moe.checkpoint.saver import Staged, one_line, together
from moe.checkpoint.trusted import check_trusted
from moe.errors import MoeError
from moe.model.head import LogProbModel
from moe.model.layers import BIAS
from moe.optimizer import Optimizer
from moe.settings import Layout


def metadata() -> dict[str, Any]:
    """Metadata with which Megatron describes a checkpoint's content."""
    return {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": True,  # one rank of a data-parallel group holds the copy
        "chained_optim_avoid_prefix": True,
    }


def stage(
    path: str | os.PathLike[str],
    model: LogProbModel,
    optimizer: Optimizer | None,
    hf_config: dict[str, Any],
    layout: Layout,
    counters: dict[str, int],
    state: dict[str, Any] | None = None,
    keep: CheckpointPolicy | None = None,
) -> Staged:
    """Copy this rank's part of a checkpoint to host memory; collective.

    Args:
        path: the checkpoint's folder; one already there is replaced when the new one is complete.
        model: the model.
        optimizer: its optimiser; None writes the model alone.
        hf_config: the config of the whole model.
        layout: how it is cut.
        counters: position in the schedule and the like: small plain values, the same on every rank, with "version".
        state: the caller's own, as JSON has it; becomes part of the checkpoint.
        keep: which of the checkpoints in the same folder stay once this one is whole; None keeps all.

    Raises:
        MoeError: on every rank, if the disk is too full or refuses.
    """
    path = Path(path)
    content: dict[str, Any] = {"model": _model_shards(model), "counters": counters}
    if optimizer is not None:
        content["optimizer"] = optimizer.megatron.sharded_state_dict(content["model"], metadata=metadata())
        content["random"] = _random_shard(_random_state())
    sharded, common = save_preprocess(content, True, _same_on_every_rank)
    by_key, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded, keep_only_main_replica=True)
    _copy_to_host(by_key, {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())})
    parts = ("model", *(("optimizer",) if optimizer else ()), *(("state",) if state is not None else ()))
    manifest = Manifest(
        version=counters["version"],
        model=hf_config,
        layout=dataclasses.asdict(layout),
        world=dist.get_world_size(),
        parts=parts,
        files={},
    )
    staged = Staged(path, mcore_to_pyt_state_dict(by_key, False), common, manifest, state, keep)
    _make_room(staged, sum(s.data.nbytes for shards in by_key.values() for s in shards if isinstance(s, ShardedTensor)))
    return staged


def _same_on_every_rank(common: dict[str, Any]) -> dict[str, Any]:
    """The state that Megatron compares between ranks: all but the optimiser's, which only some ranks hold."""
    return {name: value for name, value in common.items() if name != "optimizer"}


def _copy_to_host(by_key: dict[str, list[Any]], live: set[int]) -> None:
    """Replace tensors on a device, or in memory that training will change, by copies in host memory."""
    for shards in by_key.values():
        for shard in shards:
            data = shard.data
            if not isinstance(data, Tensor) or data.is_meta:  # what is on the meta device is read when it is written
                continue
            if data.device.type != "cpu" or data.untyped_storage().data_ptr() in live:
                shard.data = data.detach().to("cpu", copy=True)


def _make_room(staged: Staged, own_bytes: int) -> None:
    """Make the folder that is written to, if the disk has room for what all ranks will write."""
    with together(None, f"write a checkpoint to {staged.path}"):
        shares: list[Any] = [0] * dist.get_world_size()
        dist.all_gather_object(shares, own_bytes)
        if dist.get_rank() == 0:
            shutil.rmtree(staged.folder, ignore_errors=True)
            staged.folder.mkdir(parents=True)
            needed, free = sum(shares), shutil.disk_usage(staged.folder).free
            if free < needed:
                raise OSError(f"it takes {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB; free some space")


def verify(path: Path, hf_config: dict[str, Any]) -> None:
    """Verify a checkpoint, each rank a share of its files; collective.

    Args:
        path: the checkpoint's folder.
        hf_config: the model that it must be of.

    Raises:
        MoeError: on every rank, naming what is wrong with it: the first rank's problem, if any rank found one.
    """
    mine: str | None = None
    try:
        manifest = read_manifest(path)
        check_model(path, manifest, hf_config)
        check_files(path, manifest, sorted(manifest.files)[dist.get_rank() :: dist.get_world_size()])
        check_trusted(path)
    except (MoeError, OSError) as error:
        mine = str(error)
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, mine)
    found = next((problem for problem in problems if problem is not None), None)
    if found is not None:
        raise MoeError(found)


def load(path: Path, model: LogProbModel, optimizer: Optimizer, layout: Layout) -> dict[str, int]:
    """Read a checkpoint written at any layout, already verified by `verify`; collective.

    Random states come back where the ranks are the same as when it was written; elsewhere they stay as they are.

    Returns:
        The counters.

    Raises:
        MoeError: if a tensor of it is missing or of another shape, naming it, before anything is changed; if it
            cannot be read, when the model may be half read.
    """
    manifest = read_manifest(path)
    absent = _check_shapes(path, model)
    content: dict[str, Any] = {"model": _model_shards(model)}
    for name in absent:
        del content["model"][name]
    whole = "optimizer" in manifest.parts
    same_ranks = (manifest.layout, manifest.world) == (dataclasses.asdict(layout), dist.get_world_size())
    if whole:
        content["optimizer"] = optimizer.megatron.sharded_state_dict(
            content["model"], is_loading=True, metadata=metadata()
        )
        if same_ranks:
            content["random"] = _random_shard(None)
    try:
        state = dist_checkpointing.load(content, str(path))
    except (Exception, CheckpointException) as error:  # every reader under Megatron's has exceptions of its own
        raise MoeError(f"the checkpoint {path} cannot be read ({one_line(error)}); use the one before it") from error
    model.load_state_dict(state["model"], strict=False)
    for name in absent:
        model.get_buffer(name).zero_()
    if whole:
        optimizer.load_state_dict(state["optimizer"])
    else:
        optimizer.reload_weights()
    if whole and same_ranks:
        _set_random_state(state["random"])
    return state["counters"]


def _model_shards(model: LogProbModel) -> dict[str, Any]:
    """The parameters, without what Transformer Engine adds for fp8: checkpoints are the same whatever the kernels."""
    shards = model.sharded_state_dict(metadata=metadata())
    return {name: shard for name, shard in shards.items() if not name.endswith("_extra_state")}


def _check_shapes(path: Path, model: LogProbModel) -> list[str]:
    """Refuse a checkpoint of other tensors; returns the biases of experts that it lacks, which may begin with 0."""
    try:
        stored = dist_checkpointing.load_tensors_metadata(str(path))
    except Exception as error:
        raise MoeError(f"the checkpoint {path} cannot be read ({one_line(error)}); use the one before it") from error
    wanted = model.sharded_state_dict(metadata=metadata())
    biases = {name: shard.key for name, shard in wanted.items() if name.endswith(BIAS)}
    if not biases and any(key.endswith(BIAS) for key in stored):
        raise MoeError(f"the checkpoint {path} has biases of experts; set TrainerConfig.expert_bias")
    absent = [name for name, key in biases.items() if key not in stored]
    for name in absent:
        del wanted[name]
    apply_factories(wanted)
    for tensor in nested_values(wanted):
        if not isinstance(tensor, ShardedTensor):
            continue
        if tensor.key not in stored:
            raise MoeError(f"the checkpoint {path} lacks {tensor.key}; it is of another model")
        there, here = tuple(stored[tensor.key].global_shape), tuple(tensor.global_shape)
        if there != here:
            raise MoeError(
                f"{tensor.key} is {there} in the checkpoint {path}, but {here} in this model; "
                "use the model it was made with"
            )
    return absent


def _random_shard(state: dict[str, Any] | None) -> ShardedObject:
    """This rank's random state as Megatron stores objects that are not tensors."""
    return ShardedObject("random", state, (dist.get_world_size(),), (dist.get_rank(),))


def _random_state() -> dict[str, Any]:
    """Every random stream of this process; tensors and plain values."""
    legacy: Any = np.random.get_state()  # numpy's stubs have two forms of it
    name, keys, *rest = legacy
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.copy()), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
