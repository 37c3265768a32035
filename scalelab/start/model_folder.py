"""Find a trained model by its folder: a Hugging Face folder, or a checkpoint of a run."""

from __future__ import annotations

import multiprocessing
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe.checkpoint.folder import MANIFEST, finished_checkpoints, read_manifest
from moe.errors import MoeError, first_line
from moe.model.reading import read_config
from scalelab.errors import LabError
from scalelab.run.config import Run
from scalelab.store.manifest import CHECKPOINTS, CONFIG, TOKENIZER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EXPORT_SECONDS = 3600.0
"""Limit on the conversion of a checkpoint to a Hugging Face folder."""


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk: a Hugging Face folder, or a checkpoint with its run.

    Attributes:
        path: the folder.
        hf_config: the content of a Hugging Face `config.json`.
        run: the run that it is a checkpoint of; None of a Hugging Face folder.
    """

    path: Path
    hf_config: dict[str, Any]
    run: Run | None

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The model's tokenizer.

        Raises:
            LabError: the folder has none.
        """
        from scalelab.rollout.tokenizer import load_tokenizer

        folder = self.path if self.run is None else self.path.parent / TOKENIZER
        try:
            return load_tokenizer(folder)
        except Exception as error:  # whatever transformers meets in a file that it did not write
            message = f"{folder} has no readable tokenizer ({first_line(error)}): put its tokenizer.json there"
            raise LabError(message) from error

    def hf_folder(self, scratch: Path) -> Path:
        """A folder that vLLM loads: the model's own, or one written below `scratch`.

        Raises:
            LabError: the checkpoint cannot be read.
        """
        if self.run is None:
            return self.path
        folder = scratch / "model"
        # A process of its own, since an export forms a process group and the engine another.
        context = multiprocessing.get_context("spawn")
        answers: Any = context.SimpleQueue()
        export = context.Process(target=_export, args=(self.path, folder, answers), daemon=True)
        export.start()
        export.join(EXPORT_SECONDS)
        if export.is_alive():
            export.kill()
            raise LabError(f"waited {EXPORT_SECONDS:.0f} s for {self.path} to be read: is the disk that slow?")
        if export.exitcode != 0:
            reason = answers.get() if not answers.empty() else f"its process ended with code {export.exitcode}"
            raise LabError(f"cannot export {self.path}: {reason}")
        return folder


def config_of(path: Path) -> Path | None:
    """The configuration of a checkpoint's run; None if the folder is no checkpoint of a run.

    Raises:
        MoeError: the checkpoint is damaged.
        LabError: it lies in no run.
    """
    if not (path / MANIFEST).is_file():
        return None
    read_manifest(path)
    config = path.resolve().parent.parent / CONFIG
    if not config.is_file():
        raise LabError(
            f"{path} is a checkpoint without its run: {config} is missing, which names its tasks and tokenizer"
        )
    return config


def find_model(path: Path, run: Run | None = None) -> ModelFolder:
    """Find out which model a folder holds.

    Args:
        path: the folder.
        run: the run that it is a checkpoint of, as `config_of` says; None refuses checkpoints.

    Raises:
        LabError: it is neither a Hugging Face folder nor a whole checkpoint of a run.
    """
    if not path.is_dir():
        raise LabError(f"there is no folder {path}: give a Hugging Face folder, or runs/NAME/checkpoints/step_000100")
    if (path / MANIFEST).is_file():
        if run is None:
            raise LabError(f"{path} is a checkpoint of a run: export it first (scalelab export)")
        return ModelFolder(path, read_manifest(path).model, run)
    if (path / CONFIG).is_file():
        steps = finished_checkpoints(path / CHECKPOINTS)
        hint = f"name one of its checkpoints, such as {steps[-1]}" if steps else "and it has no checkpoint yet"
        raise LabError(f"{path} is a run: {hint}")
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise LabError(
            f"{path} holds no model: neither {MANIFEST} (a run's checkpoint) nor config.json and *.safetensors"
        )
    try:
        return ModelFolder(path, read_config(path), None)
    except MoeError as error:
        raise LabError(str(error)) from None


def _export(path: Path, folder: Path, answers: Any) -> None:
    warnings.filterwarnings("ignore", module="megatron")  # that packages are missing which only GPUs use
    from moe.weights.convert import export_checkpoint

    try:
        export_checkpoint(path, folder, expert_bias=True)
    except MoeError as error:
        answers.put(str(error))
        raise SystemExit(1) from error
