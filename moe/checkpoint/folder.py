"""Checkpoints on disk: find whole ones, check their model, keep some. Imports without torch.

A checkpoint is a folder ``step_000050`` with Megatron's files in it and a manifest, ``checkpoint.json``, that lists
every other file with its size and SHA-256 and says which model, layout and version it is. The manifest is written
last, in a hidden folder that then takes the final name: what has no manifest is no checkpoint. A checkpoint that was
found damaged is set aside under a hidden name, so that it takes no whole one's place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as checked

from moe.checked import CHECKED
from moe.durable import put_in_place, remove_tree, write_whole
from moe.errors import MoeError, printable
from moe.regular import open_regular, read_regular

MANIFEST, STATE = "checkpoint.json", "state.json"
WRITING, REPLACED, DAMAGED = ".writing", ".old", ".damaged"
_FORMAT = 1
_HASHES_AT_ONCE = 8
_STEP = re.compile(r"step_(\d{6,})")
# Entries of a config.json that say nothing about the weights.
_INCIDENTAL = {
    *("_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache"),
    *("max_position_embeddings", "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id"),
    *("attention_dropout", "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "pretraining_tp"),
}


@checked(frozen=True, config=CHECKED)
class CheckpointPolicy:
    """Rule for which checkpoints of a run stay on disk.

    Raises:
        ValueError: if a number is out of range.
    """

    keep_last: PositiveInt = 2
    """Number of the newest checkpoints that stay; if the newest is damaged, the one before it is used."""
    keep_every: PositiveInt | None = None
    """Checkpoints whose step is a multiple of this stay for good; None keeps no others."""
    background: bool = True
    """Train on while the files are written; costs a copy of weights and optimiser state in host memory."""

    def kept(self, steps: Iterable[int]) -> set[int]:
        """The steps whose checkpoints stay."""
        ordered = sorted(steps)
        forever = {step for step in ordered if self.keep_every and step % self.keep_every == 0}
        return forever | set(ordered[-self.keep_last :])


@dataclass(frozen=True)
class Manifest:
    """Content of a checkpoint's `manifest.json`.

    Attributes:
        version: optimiser steps behind the weights.
        model: the Hugging Face config.
        layout: sizes by which the ranks that wrote it had cut the model.
        world: number of those ranks.
        parts: of "model", "optimizer", "state" (the caller's own), those that it holds.
        files: every other file's size in bytes and SHA-256, by name.
    """

    version: int
    model: dict[str, Any]
    layout: dict[str, int]
    world: int
    parts: tuple[str, ...]
    files: dict[str, tuple[int, str]]


def step_folder(root: str | os.PathLike[str], version: int) -> Path:
    """Path of a policy version's checkpoint below the folder of all checkpoints."""
    return Path(root) / f"step_{version:06d}"


def finished_checkpoints(root: str | os.PathLike[str]) -> list[Path]:
    """The folders under ``root`` that have a manifest, oldest step first."""
    steps = ((_STEP.fullmatch(path.parent.name), path.parent) for path in Path(root).glob(f"*/{MANIFEST}"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in steps if match)]


def checkpoints_by_step(root: str | os.PathLike[str]) -> dict[int, Path]:
    """The finished checkpoints under ``root`` by their steps, oldest first."""
    return {int(path.name.removeprefix("step_")): path for path in finished_checkpoints(root)}


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read and check a checkpoint's manifest.

    Raises:
        MoeError: if there is no checkpoint, an unfinished one, or one whose manifest cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        raise MoeError(f"there is no readable checkpoint at {path}: the folder does not exist; give another")
    try:
        stored = json.loads(read_regular(path / MANIFEST))
        known = stored.pop("format") == _FORMAT
        files = {_inside(name): (int(size), str(digest)) for name, (size, digest) in stored.pop("files").items()}
        manifest = Manifest(**{**stored, "parts": tuple(stored["parts"])}, files=files)
        _check_types(manifest)
    except FileNotFoundError:
        raise MoeError(f"{path} holds no readable checkpoint: it has no {MANIFEST}, so it was never finished") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        said = f"{type(error).__name__}: {printable(error)}"
        raise MoeError(f"the checkpoint {path} is damaged: its {MANIFEST} cannot be read ({said})") from None
    if not known:
        raise MoeError(f"the checkpoint {path} was written by another version of this trainer; use that one")
    return manifest


def _inside(name: str) -> str:
    """Check that a file name from an untrusted manifest lies inside the checkpoint's folder."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is no file of the checkpoint")
    return name


def _check_types(manifest: Manifest) -> None:
    """Refuse a manifest whose entries are not of the types that `Manifest` gives them."""
    whole = {"version": manifest.version, "world": manifest.world, **manifest.layout}
    for name, value in whole.items():
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is not a count")
    if not isinstance(manifest.model, dict) or not isinstance(manifest.model.get("model_type"), str):
        raise ValueError("model is no config of a model")
    if not all(isinstance(part, str) for part in manifest.parts):
        raise ValueError("parts are not texts")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Declare a folder a checkpoint."""
    write_whole(folder / MANIFEST, json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=1))


def publish(fresh: Path, path: Path) -> None:
    """Give a finished checkpoint its name, in place of the one that has it now."""
    old = path.with_name(f".{path.name}{REPLACED}")
    if path.exists():
        _remove(old)
        path.replace(old)
    try:
        put_in_place(fresh, path)
    except OSError:
        if old.exists() and not path.exists():
            put_in_place(old, path)
        raise
    _remove(old)


def restore_replaced(root: Path) -> None:
    """Give a checkpoint its name back if a crash came after `publish` took it and before the new one had it."""
    for old in root.glob(f".step_*{REPLACED}"):
        path = root / old.name.removeprefix(".").removesuffix(REPLACED)
        if (old / MANIFEST).exists() and not path.exists():
            put_in_place(old, path)


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint so that it no longer counts; `prune` deletes it when whole ones have replaced it."""
    aside = path.with_name(f".{path.name}{DAMAGED}")
    _remove(aside)
    put_in_place(path, aside)


def _remove(path: Path) -> None:
    """Delete a checkpoint, whole or not; its manifest goes first, so that it stops counting at once."""
    if path.exists():
        remove_tree(path, MANIFEST)


def digest(path: Path) -> tuple[int, str]:
    """(bytes, SHA-256) of a file."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def check_model(path: Path, manifest: Manifest, hf_config: dict[str, Any]) -> None:
    """Refuse a checkpoint of another model.

    Raises:
        MoeError: naming what differs.
    """
    here = json.loads(json.dumps(hf_config))  # as the manifest has it: lists for tuples
    # A config may leave out what is its kind's default, so only what both say is compared.
    names = sorted((manifest.model.keys() & here.keys()) - _INCIDENTAL, key=lambda name: (name != "model_type", name))
    different = [n for n in names if None not in (manifest.model[n], here[n]) and manifest.model[n] != here[n]]
    if different:
        told = ", ".join(f"{name} is {manifest.model[name]!r} in it, but {here[name]!r} here" for name in different[:3])
        more = f", and {len(different) - 3} more" if len(different) > 3 else ""
        raise MoeError(f"the checkpoint {path} is of another model: {told}{more}; use the model it was made with")


def check_files(path: Path, manifest: Manifest, names: Iterable[str] | None = None, contents: bool = True) -> None:
    """Refuse a checkpoint whose files are not those that were written.

    Args:
        path: its folder.
        manifest: what it says of itself.
        names: the files to look at; None for all.
        contents: compare the contents, too, not only the sizes.

    Raises:
        MoeError: naming the first file that is missing, truncated or changed.
    """
    names = list(manifest.files if names is None else names)
    for name in names:
        size, file = manifest.files[name][0], path / name
        if not file.is_file():
            raise MoeError(f"the checkpoint {path} is damaged: {name} is missing; use the one before it")
        found = file.stat().st_size
        if found != size:
            kind = "truncated" if found < size else "damaged"
            raise MoeError(
                f"the checkpoint {path} is {kind}: {name} has {found} of {size} bytes; use the one before it"
            )
    if not contents:
        return
    with ThreadPoolExecutor(_HASHES_AT_ONCE) as pool:  # hashing leaves Python's lock to others
        found_digests = pool.map(lambda name: digest(path / name)[1], names)
        for name, found_digest in zip(names, found_digests):
            if found_digest != manifest.files[name][1]:
                raise MoeError(
                    f"the checkpoint {path} is damaged: {name} has changed since it was written; use the one before it"
                )


def check(path: str | os.PathLike[str], hf_config: dict[str, Any] | None = None, contents: bool = True) -> Manifest:
    """Verify a checkpoint in this one process.

    Args:
        path: its folder.
        hf_config: the model it must be of; None takes any.
        contents: hash every file; otherwise compare sizes only, which takes no time.

    Raises:
        MoeError: naming what is wrong with it.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if hf_config is not None:
        check_model(path, manifest, hf_config)
    check_files(path, manifest, contents=contents)
    return manifest


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the state that the caller of `Trainer.save` put beside the model.

    Raises:
        MoeError: if there is nothing, or it is damaged.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if STATE not in manifest.files:
        raise MoeError(f"the checkpoint {path} holds a model, but no state of a run; give one that a run has written")
    check_files(path, manifest, [STATE])
    try:
        state = json.loads(read_regular(path / STATE))
    except (ValueError, RecursionError) as error:
        raise MoeError(f"the checkpoint {path} is damaged: its {STATE} cannot be read ({printable(error)})") from None
    if not isinstance(state, dict):
        raise MoeError(f"the checkpoint {path} is damaged: its {STATE} is no JSON object; use the one before it")
    return state


def prune(root: Path, policy: CheckpointPolicy, written: Path | None = None, unfinished: bool = True) -> None:
    """Delete finished checkpoints that a policy does not keep, and the remains of unfinished and damaged ones.

    Args:
        root: the folder of all checkpoints.
        policy: which stay.
        written: the checkpoint that was written just now, which stays whatever others there are.
        unfinished: delete unfinished ones, too; False while another may be being written.
    """
    steps = checkpoints_by_step(root)
    kept = policy.kept(steps)
    for step, path in steps.items():
        if step not in kept and path != written:
            _remove(path)
    for suffix in (WRITING, REPLACED) if unfinished else ():
        for left in root.glob(f".step_*{suffix}"):
            _remove(left)
    if len(steps) >= policy.keep_last:
        for left in root.glob(f".step_*{DAMAGED}"):
            _remove(left)
