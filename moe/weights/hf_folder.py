"""Hugging Face folders: ``config.json`` and sharded safetensors, read and written one tensor at a time."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from moe.errors import MoeError
from moe.model.reading import read_config
from moe.regular import open_regular, read_regular
from moe.weights.links import check_names, check_shape, shapes, stored_as

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

# Entries of checkpoints beside a text model's weights: the other parts of a multimodal one, and constants that
# older versions of transformers saved.
_NOT_WEIGHTS = re.compile(r"^(vision_model|multi_modal_projector)\.|\.rotary_emb\.inv_freq$")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_TEXT_PREFIX = "language_model."
_BIASES = "expert_bias.json"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
"""Files of a tokenizer, which are copied with the model."""
_GENERATION = "generation_config.json"  # names the tokens that end a completion


def read_biases(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The biases of experts that `save_folder` put beside the weights, fp32 [E] by name; empty if there are none.

    Raises:
        MoeError: if the file cannot be read.
    """
    path = Path(folder) / _BIASES
    try:
        stored = json.loads(read_regular(path))
        return {name: torch.tensor(values, dtype=torch.float32) for name, values in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MoeError(f"{path} cannot be read ({error}); write the folder again") from None


def copy_tokenizer(source: Path, target: Path) -> bool:
    """Copy the tokenizer's files, and the tokens that end a completion; returns whether there is a tokenizer."""
    found = [name for name in (*TOKENIZER_FILES, _GENERATION) if (source / name).is_file()]
    for name in found:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return any(name in TOKENIZER_FILES for name in found)


@dataclass(frozen=True)
class _Place:
    """A tensor's place on disk.

    Attributes:
        file: its file.
        name: its name there.
        dtype: its type, as safetensors writes it.
        shape: its shape.
        offset: its first byte in the file.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class FolderWeights(Mapping[str, Tensor]):
    """The tensors of a Hugging Face folder by the names that `save_pretrained` writes, read when asked for.

    Also read are folders in which the experts of a layer are stacked though `save_pretrained` writes them apart, and
    those whose text model is part of a multimodal one.

    Raises:
        MoeError: if the folder holds no safetensors, or a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = Path(folder)
        config = read_config(folder) if (folder / "config.json").exists() else {}
        self._places: dict[str, _Place] = {}
        for file, expected in _files(folder).items():
            for place in _stored(file, expected):
                name = place.name.removeprefix(_TEXT_PREFIX)
                if not _NOT_WEIGHTS.search(name) and not _beyond(name, config):
                    self._places.update(_apart(name, place, config.get("model_type")))
        if config.get("tie_word_embeddings"):
            self._drop_copy("lm_head.weight", "model.embed_tokens.weight")

    def _drop_copy(self, copy: str, of: str) -> None:
        """Leave out an output matrix that the config says is the embedding, if it is."""
        if copy in self and of in self:
            if not torch.equal(self[copy], self[of]):
                raise MoeError(
                    f"{copy} is not {of}, but the config says tie_word_embeddings; give the weights' own config.json"
                )
            del self._places[copy]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by name; reads none of them."""
        return {name: place.shape for name, place in self._places.items()}

    @property
    def dtypes(self) -> dict[str, torch.dtype | str]:
        """The type of every tensor, by name, as text if it is none of torch's floating types; reads none of them."""
        return {name: _DTYPES.get(place.dtype, place.dtype) for name, place in self._places.items()}

    def __getitem__(self, name: str) -> Tensor:
        tensor = torch.empty(self._places[name].shape, dtype=self._dtype(name))
        self.read_into(tensor, name)
        return tensor

    def rows(self, name: str, first: int, shape: tuple[int, ...]) -> Tensor:
        """Read a stretch of a tensor along its first axis.

        Args:
            name: the tensor.
            first: where to begin.
            shape: of the stretch.
        """
        tensor = torch.empty(shape, dtype=self._dtype(name))
        self.read_into(tensor, name, first * math.prod(shape[1:]))
        return tensor

    def _dtype(self, name: str) -> torch.dtype:
        place = self._places[name]
        if place.dtype not in _DTYPES:
            raise MoeError(f"{name} in {place.file} is {place.dtype}; convert the weights to bfloat16 or float32")
        return _DTYPES[place.dtype]

    def read_into(self, out: Tensor, name: str, first: int = 0) -> None:
        """Fill memory of the caller's with a tensor, or with a stretch of it.

        Args:
            out: contiguous, of the tensor's type.
            name: the tensor.
            first: where in the tensor to begin, counted in entries.
        """
        place = self._places[name]
        # read rather than mapped: of a mapped file, as much as there is room for stays in memory
        with open_regular(place.file) as file:
            file.seek(place.offset + first * out.itemsize)
            # not through numpy, after which nobody could free the memory while a reference to the tensor is left
            if file.readinto((ctypes.c_char * out.nbytes).from_address(out.data_ptr())) != out.nbytes:
                raise MoeError(f"{place.file} is truncated; fetch or write it again")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _beyond(name: str, config: Mapping[str, Any]) -> bool:
    """True for a layer behind the last: the modules of GLM-4.5 and DeepSeek-V3 that guess further tokens."""
    layer = _LAYER.match(name) if "num_nextn_predict_layers" in config else None
    return layer is not None and int(layer[1]) >= config["num_hidden_layers"]


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """The files that make up the model, and the names that the index says are in each; None without an index.

    Folders may hold the same weights twice, in another shape; the index, or the usual name, says which are meant.
    """
    if (folder / _INDEX).exists():
        try:
            listed: dict[str, str] = json.loads(read_regular(folder / _INDEX))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise MoeError(f"{folder / _INDEX} cannot be read ({error}); fetch it again") from None
        names: dict[Path, list[str] | None] = {}
        for name, file in listed.items():
            names.setdefault(folder / file, [])
            names[folder / file].append(name)  # type: ignore[union-attr]
        return names
    files = [folder / _WHOLE] if (folder / _WHOLE).exists() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise MoeError(f"{folder} holds no *.safetensors; give a folder that save_pretrained wrote")
    return dict.fromkeys(files)


def _stored(file: Path, expected: list[str] | None) -> Iterator[_Place]:
    """Read the header of a safetensors file: a length, a JSON text of that length, and the tensors behind it."""
    try:
        with open_regular(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(8), "little")
            if 8 + length > size:
                raise MoeError(f"{file} is truncated, or no safetensors; fetch or write it again")
            header: dict[str, Any] = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        if missing := sorted(set(expected or ()) - header.keys()):
            raise MoeError(f"{file} lacks {missing[0]}, which the index says is in it; fetch or write it again")
        for name in header if expected is None else expected:
            start, end = header[name]["data_offsets"]
            if 8 + length + end > size:
                raise MoeError(f"{file} is truncated; fetch or write it again")
            yield _Place(file, name, header[name]["dtype"], tuple(header[name]["shape"]), 8 + length + start)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, MoeError):
            raise
        raise MoeError(f"{file} cannot be read ({error}); fetch or write it again") from error


def _apart(name: str, place: _Place, kind: str | None) -> dict[str, _Place]:
    """Tensors in a stored one: for stacked experts of families that write them apart, each expert's own."""
    layer, mark, what = name.partition(".mlp.")
    if kind == "mixtral" and mark:
        block, (gate, up, down) = f"{layer}.block_sparse_moe", ("w1", "w3", "w2")
    else:
        block, (gate, up, down) = f"{layer}.mlp", ("gate_proj", "up_proj", "down_proj")
    if not mark or kind not in ("deepseek_v3", "glm4_moe", "mixtral", "qwen3_moe") or place.dtype not in _DTYPES:
        return {name: place}
    if what not in ("experts.gate_up_proj", "experts.down_proj"):
        return {f"{block}.{what}": place}
    experts, rows, columns = place.shape
    parts = (gate, up) if "gate_up" in what else (down,)  # one above the other in each expert's matrix
    shape = (rows // len(parts), columns)
    size = math.prod(shape) * _DTYPES[place.dtype].itemsize
    return {
        f"{block}.experts.{number // len(parts)}.{parts[number % len(parts)]}.weight": replace(
            place, shape=shape, offset=place.offset + number * size
        )
        for number in range(experts * len(parts))
    }


def check_tensors(weights: FolderWeights, wanted: Mapping[str, torch.Size]) -> None:
    """Refuse a folder whose tensors are not those wanted; reads none of them.

    Raises:
        MoeError: naming the first that is missing, extra or of another shape.
    """
    found = weights.shapes
    check_names(wanted, found)
    for name, shape in wanted.items():
        check_shape(name, found[name], shape)


def is_multimodal(folder: str | os.PathLike[str]) -> bool:
    """True if a folder's text model is a part of a larger one (the public Llama-4 folders)."""
    return "text_config" in json.loads(read_regular(Path(folder) / "config.json"))


def write_text_model(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the text model of a multimodal folder as a folder of its own, with its tokenizer.

    Holds one tensor at a time.

    Raises:
        MoeError: the source lacks a tensor, has one too many, or one of another shape.
        OSError: the disk refuses.
    """
    weights, config = FolderWeights(source), read_config(source)
    wanted = shapes(config)
    check_tensors(weights, wanted)
    save_folder(target, config, ((name, weights[name]) for name in wanted), wanted)
    copy_tokenizer(Path(source), Path(target))


def save_folder(
    folder: str | os.PathLike[str],
    hf_config: dict[str, Any],
    weights: Iterable[tuple[str, Tensor]],
    shapes: Mapping[str, Iterable[int]],
    shard_bytes: int = 5 * 2**30,
    biases: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a folder that transformers and vLLM load; the old content stays until all is written.

    Files of the folder that are not ours (a tokenizer) are kept. Holds no more than one tensor.

    Args:
        folder: the folder.
        hf_config: the model's config.
        weights: all of its tensors, of one type but for `stored_as`.
        shapes: their names and shapes, in the order in which they come.
        shard_bytes: about how large a file may grow.
        biases: of experts, by name, for a file of their own.

    Raises:
        OSError: if the disk refuses; the folder is then as it was.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".writing-{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        dtype = _save_shards(fresh, iter(weights), {name: tuple(shape) for name, shape in shapes.items()}, shard_bytes)
        config = {**hf_config, "dtype": str(dtype).removeprefix("torch.")}
        (fresh / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        if biases:
            (fresh / _BIASES).write_text(json.dumps({name: bias_E.tolist() for name, bias_E in biases.items()}) + "\n")
        for old in (*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), *folder.glob(_BIASES)):
            old.unlink()
        for file in fresh.iterdir():
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _save_shards(
    folder: Path, weights: Iterator[tuple[str, Tensor]], shapes: dict[str, tuple[int, ...]], shard_bytes: int
) -> torch.dtype:
    """Write the files and their index; returns the weights' type."""
    following = next(weights)
    nothing = "", torch.empty(0)
    dtype = following[1].dtype
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    held = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        if shards[-1] and held + size > shard_bytes:
            shards.append({})
            held = 0
        shards[-1][name] = shape
        held += size
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = _WHOLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        index.update(dict.fromkeys(shard, file))
        with open(folder / file, "wb") as out:
            _write_header(out, shard, dtype)
            for name in shard:
                _write_tensor(out, name, shard[name], stored_as(name, dtype), *following)
                following = nothing  # frees the tensor before the next is made
                following = next(weights, nothing)
            out.flush()
            os.fsync(out.fileno())
    if following[0]:
        raise ValueError(f"{following[0]} came after all that was announced")
    if len(shards) > 1:
        total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / _INDEX).write_text(json.dumps(content, indent=2) + "\n")
    return dtype


def _write_header(out: BinaryIO, shard: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    """Safetensors begin with the length of a JSON text, and that text: where each tensor lies behind it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shard.items():
        own = stored_as(name, dtype)
        end = at + math.prod(shape) * own.itemsize
        header[name] = {"dtype": _CODES[own], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned
    out.write(len(text).to_bytes(8, "little") + text)


def _write_tensor(
    out: BinaryIO, wanted: str, shape: tuple[int, ...], dtype: torch.dtype, name: str, tensor: Tensor
) -> None:
    if (name, tuple(tensor.shape), tensor.dtype) != (wanted, shape, dtype):
        came = f"{name or 'nothing'} came as {tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"{came}, announced was {wanted} as {dtype} {shape}")
    # a stack is made contiguous matrix by matrix, so that no second whole one exists
    for part in tensor if tensor.dim() > 2 else (tensor,):
        out.write(memoryview(part.detach().cpu().contiguous().view(torch.uint8).numpy()))
