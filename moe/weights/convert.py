"""Hugging Face folder ⇄ checkpoint, one tensor at a time, on one process that has no GPU and builds no model.

A checkpoint describes the whole model, whatever ranks wrote or will read it, so no layout comes into this: what is
imported here loads at any layout, and a checkpoint of any layout is exported. Of the model there is a skeleton on the
meta device, which knows under which key and where in it Megatron keeps each part of each parameter.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from moe.checkpoint import distributed as checkpoint
from moe.checkpoint.folder import Manifest, check
from moe.checkpoint.saver import Saver, one_line
from moe.checkpoint.trusted import TrustedReader
from moe.cpu import host as cpu_host
from moe.durable import put_in_place
from moe.errors import MoeError
from moe.model.gpt import build
from moe.model.head import LogProbModel
from moe.model.layers import BIAS
from moe.model.reading import read_config
from moe.model.size import parameters
from moe.ranks import parallel
from moe.settings import Layout, TrainerSetup
from moe.weights.hf_folder import FolderWeights, check_tensors, copy_tokenizer, read_biases, save_folder
from moe.weights.links import CORRECTION, Link, expert_bias_names, links, shapes, stored_as

TOKENIZER = "tokenizer"
"""Folder in a checkpoint, or beside the checkpoints of a run, with the files of the model's tokenizer."""

_TYPES: dict[torch.dtype, Literal["float32", "bfloat16"]] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class Converted:
    """Summary of a conversion.

    Attributes:
        path: where it is now.
        model_type: the family.
        parameters: of the model.
        active: of these, those that one token meets.
        dtype: type of the weights.
        tokenizer: whether a tokenizer came along.
    """

    path: str
    model_type: str
    parameters: int
    active: int
    dtype: str
    tokenizer: bool


def import_folder(folder: Path, path: Path) -> Converted:
    """Make a checkpoint, without optimiser, of a Hugging Face folder.

    Args:
        folder: ``config.json``, safetensors, and perhaps a tokenizer, which the checkpoint takes along.
        path: the checkpoint; there must be nothing there.

    Raises:
        MoeError: naming what is wrong with the folder, or why the checkpoint cannot be written; there is none then.
    """
    _refuse_to_replace(path)
    hf_config = read_config(folder)
    if read_biases(folder):
        raise MoeError(f"{folder} has biases of experts; start a run from it as it is, with SFT.pretrained")
    wanted = shapes(hf_config)
    weights = FolderWeights(folder)
    dtype = _check_weights(wanted, weights)
    with _skeleton(hf_config, dtype) as model:
        staged = checkpoint.stage(path, model, None, hf_config, Layout(), dict.fromkeys(_COUNTERS, 0))
        try:
            tokenizer = copy_tokenizer(folder, staged.folder / TOKENIZER)
            Saver(_SECONDS).start(replace(staged, read=_Reader(hf_config, model, weights)), background=False)
        finally:
            shutil.rmtree(staged.folder, ignore_errors=True)
    return _told(path, hf_config, dtype, tokenizer)


_COUNTERS = ("version", "skipped", "in_a_row")
_SECONDS = 3600.0  # that writing may take


def export_checkpoint(path: Path, folder: Path, shard_bytes: int = 5 * 2**30, expert_bias: bool = False) -> Converted:
    """Make a Hugging Face folder of a checkpoint's model.

    Args:
        path: the checkpoint, of any layout; its tokenizer, or the one beside it, comes along.
        folder: the folder; there must be nothing there.
        shard_bytes: about how large a file may grow.
        expert_bias: write biases of experts to a file of their own, which only this package reads; without, a
            checkpoint that has them is refused.

    Raises:
        MoeError: naming what is wrong with the checkpoint, or why the folder cannot be written; there is none then.
    """
    _refuse_to_replace(folder)
    manifest = check(path)
    hf_config = manifest.model
    fresh = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(fresh, ignore_errors=True)
    place = path if (path / TOKENIZER).is_dir() else path.parent
    try:
        stored = _Stored(path, manifest)
        if stored.biased and not expert_bias:
            raise MoeError(
                f"{path} has biases of experts; transformers and vLLM leave them out and so choose other experts. "
                "Write them beside the weights, for this package alone, with --expert-bias"
            )
        with _skeleton(hf_config, stored.dtype, stored.biased) as model:
            biases = _biases(hf_config, model, stored)
            tensors = _tensors(hf_config, model, stored)
            save_folder(fresh, hf_config, tensors, shapes(hf_config), shard_bytes, biases)
        tokenizer = copy_tokenizer(place / TOKENIZER, fresh)
        put_in_place(fresh, folder)
    except OSError as error:
        raise MoeError(f"cannot write the model to {folder}: {one_line(error)}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return _told(folder, hf_config, stored.dtype, tokenizer)


def _refuse_to_replace(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise MoeError(f"{path} exists and is not empty; give another name, or move it away")
    path.parent.mkdir(parents=True, exist_ok=True)


def _told(path: Path, hf_config: dict[str, Any], dtype: torch.dtype, tokenizer: bool) -> Converted:
    counted = parameters(hf_config)
    return Converted(str(path), hf_config["model_type"], counted.total, counted.active, _TYPES[dtype], tokenizer)


def _check_weights(wanted: Mapping[str, torch.Size], weights: FolderWeights) -> torch.dtype:
    """Refuse a folder before anything is written; returns the type of its weights."""
    check_tensors(weights, wanted)
    first = weights.dtypes[next(iter(wanted))]
    for name in wanted:
        dtype = weights.dtypes[name]
        if name.endswith(CORRECTION) and dtype in _TYPES:
            continue  # some folders have them in fp32 and some in their weights' type; a checkpoint has fp32
        if dtype not in _TYPES:
            raise MoeError(f"{name} is {_word(dtype)}; convert the weights to bfloat16 or float32")
        if dtype != first:
            raise MoeError(f"{name} is {_word(dtype)}, but {next(iter(wanted))} is {_word(first)}; convert them to one")
    assert isinstance(first, torch.dtype)
    return first


def _word(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def _skeleton(hf_config: dict[str, Any], dtype: torch.dtype, biased: bool = False) -> Iterator[LogProbModel]:
    """The model without its weights, in one process, with or without biases of experts."""
    with tempfile.TemporaryDirectory(prefix="scalelab-") as meeting:
        parallel.join(Layout(), 0, 1, f"file://{meeting}/one", 60)
        try:
            with cpu_host.megatron():
                with torch.device("meta"):
                    model = build(hf_config, TrainerSetup(dtype=_TYPES[dtype], expert_bias=float(biased)))
                yield model
        finally:
            parallel.leave()


@dataclass(frozen=True)
class _Piece:
    """A part of a parameter, as the checkpoint keeps it.

    Attributes:
        key: Megatron's key.
        offset: where in the tensor of that key.
        size: the part's shape there.
        rows: the part of the whole parameter.
    """

    key: str
    offset: tuple[int, ...]
    size: tuple[int, ...]
    rows: tuple[slice, ...]


def _pieces(model: LogProbModel) -> dict[str, list[_Piece]]:
    """The pieces of every parameter and bias of experts."""
    params: dict[str, Tensor] = dict(model.named_parameters())
    params.update((name, buffer) for name, buffer in model.named_buffers() if name.endswith(BIAS))
    entries: dict[str, Any] = model.sharded_state_dict(metadata=checkpoint.metadata())
    found: dict[str, list[_Piece]] = {name: [] for name in params}
    for name in params:
        entry = {name: entries[name]}
        apply_factories(entry)
        for part in nested_values(entry):
            assert isinstance(part, ShardedTensor)
            rows = _rows(params[name], part.data)
            before = (1,) * part.prepend_axis_num
            found[name].append(_Piece(part.key, tuple(part.global_offset), (*before, *part.local_shape), rows))
    return found


def _rows(whole: Tensor, part: Tensor) -> tuple[slice, ...]:
    """The slices that a view shows of a tensor."""
    starts = np.unravel_index(part.storage_offset(), whole.shape)
    if part.stride() != whole.stride():
        raise ValueError(f"a part of {tuple(part.shape)} is no stretch of rows and columns of {tuple(whole.shape)}")
    return tuple(slice(int(start), int(start) + size) for start, size in zip(starts, part.shape, strict=True))


class _Reader:
    """The tensors of a checkpoint, from a Hugging Face folder.

    A piece of all experts is read expert by expert; of other parameters it remembers the one it had last.
    """

    def __init__(self, hf_config: dict[str, Any], model: LogProbModel, weights: FolderWeights) -> None:
        by_name = {link.param: link for link in links(hf_config)}
        self._weights, self._dtype = weights, model.config.params_dtype
        self._places: dict[tuple[str, tuple[int, ...]], tuple[Link, _Piece]] = {
            (piece.key, piece.offset): (by_name[name], piece)
            for name, pieces in _pieces(model).items()
            if name in by_name
            for piece in pieces
        }
        self._last: tuple[str, Tensor] | None = None

    def __call__(self, index: MetadataIndex) -> Tensor:
        link, piece = self._places[index.fqn, tuple(index.offset or ())]
        if link.experts:
            self._last = None
            return self._of_experts(link, piece)
        if self._last is None or self._last[0] != link.param:
            self._last = None  # frees it before the next is read
            whole = link.merge(self._weights[name] for name in link.names)
            self._last = link.param, whole.to(stored_as(link.names[0], self._dtype))
        whole = self._last[1]
        if math.prod(piece.size) == whole.numel():
            self._last = None  # the caller's own from here on
            return whole.contiguous().view(piece.size)
        return whole[piece.rows].reshape(piece.size).clone(memory_format=torch.contiguous_format)

    def _of_experts(self, link: Link, piece: _Piece) -> Tensor:
        out = torch.empty(piece.size, dtype=self._dtype)
        experts, rows, columns = piece.rows
        scratch = torch.empty(link.shape[1:], dtype=self._dtype)  # one for all: many small ones leave holes in memory
        for matrix, number in zip(out.view(-1, *out.shape[-2:]), range(link.shape[0])[experts], strict=True):
            matrix.copy_(self._expert(link, number, scratch)[rows, columns])
        return out

    def _expert(self, link: Link, number: int, scratch: Tensor) -> Tensor:
        """One expert's matrix in Megatron's form, in memory of the caller's."""
        each = len(link.names) // link.shape[0]
        if each == 0:  # all experts in one tensor, [in, out]
            self._weights.read_into(scratch, link.names[0], number * scratch.numel())
            return scratch.view(scratch.shape[::-1]).T
        for part, name in zip(scratch.chunk(each), link.names[number * each : (number + 1) * each], strict=True):
            self._weights.read_into(part, name)
        return scratch


class _Stored:
    """The tensors of a checkpoint, read piece by piece.

    Attributes:
        dtype: the type of the weights.
        biased: whether there are biases of experts.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._reader = TrustedReader(path, manifest)
        self._metadata: Metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.dtype = self._of("embedding.word_embeddings.weight").properties.dtype
        self.biased = any(key.endswith(BIAS) for key in self._metadata.state_dict_metadata)

    def _of(self, key: str) -> TensorStorageMetadata:
        found = self._metadata.state_dict_metadata.get(key)
        if not isinstance(found, TensorStorageMetadata):
            raise MoeError(f"the checkpoint {self._path} lacks {key}; it is of another model")
        return found

    def read(self, piece: _Piece, into: Tensor) -> None:
        """Copy a piece into a tensor of its shape."""
        stored = self._of(piece.key)
        ends = [start + length for start, length in zip(piece.offset, piece.size)]
        if len(ends) != len(stored.size) or any(end > size for end, size in zip(ends, stored.size)):
            raise MoeError(
                f"{piece.key} is {tuple(stored.size)} in the checkpoint {self._path}; it is of another model"
            )
        wanted = ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.size))
        items = create_read_items_for_chunk_list(piece.key, stored, [wanted])
        if sum(math.prod(item.lengths) for item in items) != into.numel():
            raise MoeError(f"the checkpoint {self._path} lacks a part of {piece.key}; use the one before it")
        self._reader.read_data(LoadPlan(items), _Into(into)).wait()


class _Into(DefaultLoadPlanner):
    """Reader into one tensor."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The part of the tensor that an item fills."""
        part = self._tensor
        for axis, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths)):
            part = part.narrow(axis, start, length)
        return part


def _biases(hf_config: dict[str, Any], model: LogProbModel, stored: _Stored) -> dict[str, Tensor]:
    """The biases of experts of a checkpoint, by name."""
    names, pieces = expert_bias_names(hf_config), _pieces(model)
    found = {}
    for name, buffer in model.named_buffers():
        if name.endswith(BIAS):
            bias_E = found[names[int(name.split(".")[2])]] = torch.empty(buffer.shape)
            for piece in pieces[name]:
                stored.read(piece, bias_E[piece.rows].view(piece.size))
    return found


def _tensors(hf_config: dict[str, Any], model: LogProbModel, stored: _Stored) -> Iterator[tuple[str, Tensor]]:
    """Every (Hugging Face name, tensor) of a checkpoint, in the order of the links."""
    pieces = _pieces(model)
    for link in links(hf_config):
        whole = torch.empty(link.shape, dtype=stored_as(link.names[0], stored.dtype))
        for piece in pieces[link.param]:
            stored.read(piece, whole[piece.rows].view(piece.size))
        yield from zip(link.names, link.split(whole), strict=True)
        del whole
