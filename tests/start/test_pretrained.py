"""A folder to start from is refused by the headers of its files, before anything starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moe.weights.hf_folder import FolderWeights
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.run.config import Run
from scalelab.start.base_model import SHIPPED, pretrained

LOST = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "quickstart", tmp_path / "model"))


def start_of(folder: Path) -> tuple[Run, str]:
    run = resolve("quickstart").run
    return replace(run, sft=replace(run.sft, pretrained=str(folder))), str(folder)


def test_a_folder_with_all_tensors_is_taken(folder: Path) -> None:
    assert pretrained(*start_of(folder)) == folder


def test_a_public_llama4_folder_is_taken_as_it_is_and_its_text_model_is_written_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the hub the text model of Llama-4 is a part of a larger one."""
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": text}))
    tensors = load_file(folder / "model.safetensors")
    whole = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**whole, "vision_model.patch.weight": torch.zeros(2)}, folder / "model.safetensors")
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**29))
        with pytest.raises(LabError, match=r"has 0\.5 GiB free, and the text model of .*: free some, or set SCALE"):
            pretrained(*start_of(folder))
        assert not (tmp_path / "cache/base").exists()
    cached = pretrained(*start_of(folder))
    assert cached.is_relative_to(tmp_path / "cache")
    assert pretrained(*start_of(folder)) == cached
    assert FolderWeights(cached).shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert pretrained(*start_of(cached)) == cached


def test_a_folder_without_a_tensor_is_refused_by_its_name(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[LOST]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LabError, match=f"SFT.pretrained: {folder}: the weights lack {LOST}") as refused:
        pretrained(*start_of(folder))
    assert "\n" not in str(refused.value)


def test_a_folder_with_a_tensor_too_many_or_of_another_shape_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    wide = tensors[LOST].shape[0] + 1
    save_file({**tensors, LOST: torch.zeros(wide, 1)}, folder / "model.safetensors")
    with pytest.raises(LabError, match=rf"{LOST} has shape \({wide}, 1\), but this model needs"):
        pretrained(*start_of(folder))
    save_file({**tensors, "model.more.weight": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(LabError, match=r"the weights hold model\.more\.weight"):
        pretrained(*start_of(folder))
