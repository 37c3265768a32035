"""Read a checkpoint's pickles before torch does, with an unpickler that allows only the classes that belong there.

torch reads two parts of a distributed checkpoint with Python's `pickle`, which runs whatever its author wrote: the file
``.metadata``, which says where each tensor lies, and the objects that are not tensors, such as random states. Whoever
exports, measures or resumes from a checkpoint of somebody else's would run that person's code. So both are read here
first, and a checkpoint that names anything but torch's own descriptions of tensors, or bytes outside its own files, is
refused. Everything else in a checkpoint is JSON, or is read by torch with ``weights_only``.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout

from moe.checkpoint.folder import Manifest, read_manifest
from moe.errors import MoeError, printable, require
from moe.regular import open_regular, read_regular

METADATA = ".metadata"
_BACKENDS = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""Content of Megatron's ``metadata.json`` in every checkpoint that this package writes."""

_CLASSES: tuple[Callable[..., Any], ...] = (
    *(Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata, TensorProperties, ChunkStorageMetadata),
    *(BytesStorageMetadata, _MEM_FORMAT_ENCODING, _StorageInfo, _get_layout),
)
_KNOWN: dict[tuple[str, str], Any] = {
    **{(one.__module__, one.__qualname__): one for one in _CLASSES},
    ("torch", "Size"): torch.Size,
    ("pathlib", "PosixPath"): PosixPath,  # Python 3.13 has it in a module of another name
    ("pathlib._local", "PosixPath"): PosixPath,
    **{("torch", name): one for name, one in vars(torch).items() if isinstance(one, torch.dtype)},
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that allows only the classes that describe tensors."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up an allowed class; refuse all others.

        Raises:
            UnpicklingError: it is none of those that belong into a description of tensors.
        """
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which could run code") from None


class TrustedReader(FileSystemReader):
    """torch's reader of a checkpoint's files, with `read_metadata` for ``.metadata``."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path)
        self._checkpoint, self._manifest = path, manifest

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the place of each tensor, checked by this module.

        Raises:
            MoeError: the file holds anything else.
        """
        return read_metadata(self._checkpoint, self._manifest)


def read_metadata(path: Path, manifest: Manifest) -> Metadata:
    """Read the place of each tensor of a checkpoint, verified entry by entry.

    Args:
        path: the checkpoint's folder.
        manifest: what it says of itself.

    Raises:
        MoeError: the file cannot be read, or says anything but that.
    """
    try:
        if METADATA not in manifest.files:
            raise ValueError("its manifest does not list it")
        metadata = _Unpickler(io.BytesIO(read_regular(path / METADATA))).load()
        _check(metadata, manifest)
    except Exception as error:  # what a stranger wrote can fail in any way
        raise MoeError(
            f"the checkpoint {path} is not to be trusted: its {METADATA} cannot be read ({printable(error)})"
        ) from None
    metadata.storage_meta = StorageMeta()  # says where the checkpoint once lay
    return metadata


def check_trusted(path: Path) -> None:
    """Check that nothing in a checkpoint runs code when torch and Megatron read it.

    Raises:
        MoeError: something could, or cannot be read at all.
    """
    manifest = read_manifest(path)
    metadata = read_metadata(path, manifest)
    try:
        if json.loads(read_regular(path / "metadata.json")) != _BACKENDS:
            raise ValueError("metadata.json names other formats")
        for index, place in metadata.storage_data.items():
            if isinstance(metadata.state_dict_metadata[index.fqn], BytesStorageMetadata):
                with open_regular(path / place.relative_path) as file:
                    _check_object(file, place)
    except Exception as error:  # what a stranger wrote can fail in any way
        raise MoeError(f"the checkpoint {path} is not to be trusted: {printable(error)}") from None


def _check_object(file: BinaryIO, place: _StorageInfo) -> None:
    """Read a non-tensor object with torch's reader for untrusted data."""
    file.seek(place.offset)
    torch.load(io.BytesIO(file.read(place.length)), map_location="cpu", weights_only=True)


def _check(metadata: Any, manifest: Manifest) -> None:
    """Refuse a description whose parts are not of the types that torch writes, or lie outside the files."""
    require(type(metadata) is Metadata, "it describes no tensors")
    stored, places = metadata.state_dict_metadata, metadata.storage_data
    require(type(stored) is dict and type(places) is dict, "it describes no tensors")
    require(metadata.planner_data is None, "it has data of another planner")
    for key, entry in stored.items():
        require(type(key) is str, "a tensor has no name")
        if type(entry) is TensorStorageMetadata:
            _check_tensor(key, entry)
        else:
            require(type(entry) is BytesStorageMetadata, f"{key} is neither a tensor nor bytes")
    for index, place in places.items():
        require(type(index) is MetadataIndex and index.fqn in stored, "it places a tensor that it does not describe")
        require(type(place) is _StorageInfo, f"{index.fqn} lies nowhere")
        _check_place(index.fqn, place, manifest)


def _check_tensor(key: str, entry: TensorStorageMetadata) -> None:
    properties = entry.properties
    require(
        type(properties) is TensorProperties
        and isinstance(properties.dtype, torch.dtype)
        and type(entry.size) is torch.Size
        and type(entry.chunks) is list,
        f"{key} is described in another way",
    )
    for chunk in entry.chunks:
        require(
            type(chunk) is ChunkStorageMetadata
            and type(chunk.offsets) is type(chunk.sizes) is torch.Size
            and len(chunk.offsets) == len(chunk.sizes) == len(entry.size)
            and all(at >= 0 and n >= 0 and at + n <= m for at, n, m in zip(chunk.offsets, chunk.sizes, entry.size)),
            f"{key} has a part outside of it",
        )


def _check_place(key: str, place: _StorageInfo, manifest: Manifest) -> None:
    name, at, length = place.relative_path, place.offset, place.length
    require(type(name) is str and name in manifest.files, f"{key} lies in a file that is not the checkpoint's")
    require(
        type(at) is int and type(length) is int and at >= 0 and length >= 0 and at + length <= manifest.files[name][0],
        f"{key} lies outside {name}",
    )
    require(not place.transform_descriptors, f"{key} is stored in another form")
