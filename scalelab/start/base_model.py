"""The model RL starts from: pretrained, or fine-tuned on the tasks' own or public traces and cached by its inputs.

The base models of the quickstart and of the study come with the lab (`scalelab/bases/`, made by `tools/ship_base.py`):
a first run starts with RL at once, and all machines start the study from the same weights.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from moe.cpu.portable import portable
from moe.durable import made_whole
from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.model.decoder import DecoderConfig
from moe.model.reading import read_config
from moe.settings import TrainerConfig
from scalelab.errors import LabError
from scalelab.plan.disk import check_copy_disk
from scalelab.rollout.tokenizer import build_tokenizer, load_tokenizer, save_tokenizer
from scalelab.run.config import Run
from scalelab.start.fine_tuning import Retry, Saved, StartTuner, make, once
from scalelab.start.hub_model import PREFIX as HUB
from scalelab.start.hub_model import hub_model
from scalelab.start.model_folder import ModelFolder, find_model
from scalelab.start.packaged import PREFIX, packaged_model
from scalelab.start.traces import Examples, PreparedTraces, TaskTraces, prepare, traces
from scalelab.store.manifest import TOKENIZER
from scalelab.store.publication import CheckpointNames
from scalelab.watch.progress import Progress
from tasks.cache import cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Traces the tokenizer learns its merges from, and which stand for the data in the cache's key.
TOKENIZER_TRACES = 4096
KEY_TRACES = 256
# Bytes at each end of a file of weights that tell two models apart.
DIGESTED = 2**22
# Settings of the optimiser that say nothing of SFT: its own take the place of two, `precision` has one, and one changes
# where numbers are kept.
NOT_SFT = ("lr", "warmup_steps", "decay", "decay_until", "lr_at_end", "moments", "offload", "rule")
# How long one run may wait while another makes the model that both start from.
MAKER_SECONDS = 24 * 3600.0
# Version of the fine-tuning, part of the key of every base model; raise it when that changes.
FINE_TUNING = "0.1.0"
# Models that come with the lab: folders, each with the cache's keys of its model in the file KEY.
SHIPPED = Path(__file__).parents[1] / "bases"
KEY = "key"
TokenizerAndKey = tuple["PreTrainedTokenizerFast", str]
ROUTER_CHOICES = ("balance", "z_loss", "expert_bias", "freeze_router")


def base_tokenizer(run: Run) -> PreTrainedTokenizerFast:
    """The tokenizer of the run's models: the pretrained one's, or one learnt from the traces, the same each time."""
    if run.sft.pretrained is not None:
        return load_tokenizer(pretrained(run, run.sft.pretrained))
    examples = traces(run, 0, TOKENIZER_TRACES)
    return build_tokenizer((prompt.text + completion for prompt, completion in examples), run.model.vocab_size)


def tokenizer_of(model: ModelFolder) -> PreTrainedTokenizerFast:
    """The tokenizer of a model on disk; of a checkpoint without one beside it, that of its run."""
    if model.run is not None and not (model.path.parent / TOKENIZER).is_dir():
        return base_tokenizer(model.run)
    return model.tokenizer()


def pretrained(run: Run, folder: str) -> Path:
    """The Hugging Face folder to start from, checked for the run's model, all of its tensors, and a tokenizer.

    Args:
        run: the run.
        folder: a folder, `hub:ORG/NAME` for a model on the Hugging Face hub, or `package:NAME` for the model in a GGUF
            file of an installed Python package.

    Raises:
        LabError: it is not, naming what differs.
    """
    from moe.weights.hf_folder import is_multimodal  # imports torch, which a base model that is there does not need

    if folder.startswith(PREFIX):
        path = packaged_model(folder.removeprefix(PREFIX), cache_folder() / "base")
    elif folder.startswith(HUB):
        path = hub_model(folder.removeprefix(HUB), lambda found: _demand_shape(run, read_config(found)))
    else:
        path = Path(folder).expanduser().absolute()
        if not path.is_dir():
            raise LabError(
                f"SFT.pretrained: there is no folder {path}; give a Hugging Face folder, {HUB}ORG/NAME to download a "
                f"model, or {PREFIX}NAME"
            )
    found = checked_model(run, path)
    return _text_model(found.path) if is_multimodal(found.path) else found.path


def checked_model(run: Run, path: Path) -> ModelFolder:
    """The Hugging Face folder at a path, checked as `pretrained` says; nothing is written.

    Raises:
        LabError: it is not the run's, naming what differs.
    """
    found = find_model(path)
    _demand_shape(run, found.hf_config)
    _demand_tensors(found)
    found.tokenizer()
    return found


def _demand_shape(run: Run, hf_config: dict[str, Any]) -> None:
    """Refuse a pretrained model that is not the run's.

    Raises:
        LabError: naming what differs.
    """
    here, there = architecture(run.model.to_hf()), architecture(hf_config)
    different = sorted(name for name in here.fields if here.fields[name] != there.fields.get(name))
    if here.layers != there.layers:
        different.append("kinds of layers")
    if run.model.vocab_size != hf_config["vocab_size"]:
        different.append("vocab_size")
    if different or here != there:
        what = ", ".join(different) or "other weights"
        raise LabError(
            f"SFT.pretrained = {run.sft.pretrained!r} is not the run's model: {what} differ; "
            f"{_settings(run.model, hf_config)}"
        )


def _settings(model: DecoderConfig, hf_config: dict[str, Any]) -> str:
    """The settings that would make a run's model that of a folder, for an error's text."""
    if hf_config["model_type"] != model.model_type:
        return f"bind Run.model to a {hf_config['model_type']} of its shape"
    here = model.to_hf()
    different = {
        one.name: hf_config[one.name]
        for one in fields(model)
        if one.name in hf_config and hf_config[one.name] != here.get(one.name)
    }
    options = [
        f"--set {type(model).__name__}.{name}={value!r}"
        for name, value in different.items()
        if isinstance(value, bool | int | float)
    ]
    if len(options) < len(different) or not options:
        return "bind Run.model to the shape in its config.json"
    return "to train it: " + " ".join(options)


def _demand_tensors(found: ModelFolder) -> None:
    """Refuse weights that are not those of their `config.json`, by the headers of their files.

    Raises:
        LabError: naming the first tensor that is wrong.
    """
    from moe.weights.hf_folder import FolderWeights, check_tensors
    from moe.weights.links import shapes

    try:
        check_tensors(FolderWeights(found.path), shapes(found.hf_config))
    except MoeError as error:
        raise LabError(f"SFT.pretrained: {found.path}: {error}") from error


def _text_model(folder: Path) -> Path:
    """The text model of a multimodal folder, written once into the cache: engines load no part of a larger model."""
    from moe.weights.hf_folder import write_text_model

    stamp = f"{folder.resolve()} {(folder / 'config.json').stat().st_mtime_ns}"
    target = cache_folder() / "base" / f"text-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if not target.exists():
        check_copy_disk(target, folder)
        try:
            with made_whole(target, side_by_side=True) as partial:
                write_text_model(folder, partial)
        except MoeError as error:
            raise LabError(f"{folder}: {error}") from error
    return target


def cache_key(run: Run, tokenizer: Any, prepared: PreparedTraces | None = None) -> str:
    """Hash of everything the base model depends on: architecture, precision, data, SFT and seed, but not the recipe.

    The data are hashed as the model sees them, so a change in how traces are made or tokenized makes another model.
    """
    content = {
        "version": FINE_TUNING,
        "model": run.model.to_hf(),
        "precision": _precision(run.trainer),
        "routers": [getattr(run.trainer, name) for name in ROUTER_CHOICES],
        "optimizer": {name: value for name, value in asdict(run.trainer.optimizer).items() if name not in NOT_SFT},
        **({} if run.trainer.optimizer.rule is None else {"rule": repr(run.trainer.optimizer.rule)}),
        "sft": [run.sft.steps, run.sft.traces_per_step, run.sft.learning_rate],
        "seed": base_seed(run),
    }
    if run.sft.pretrained is not None:
        content["start"] = _stamp(pretrained(run, run.sft.pretrained))
    if prepared is not None:
        content["traces"] = prepared.facts["key"]
    else:
        examples = [tokenizer.encode(prompt.text + completion) for prompt, completion in traces(run, 0, KEY_TRACES)]
        content |= {"tasks": [asdict(cast(Any, task)) for task in run.tasks], "examples": examples}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_name).encode()).hexdigest()[:16]


def _name(value: Any) -> str:
    """The name of a function among a task's settings."""
    return f"{value.__module__}.{value.__qualname__}"


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of the files of a model, whose content would take minutes to hash."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _precision(trainer: TrainerConfig) -> str:
    moments = trainer.optimizer.moments
    return trainer.dtype if moments == "float32" else f"{trainer.dtype}, moments in {moments}"


def base_seed(run: Run) -> int:
    """The seed of the base model."""
    return run.seed if run.sft.seed is None else run.sft.seed


def taken_as_is(run: Run) -> bool:
    """True if RL starts from a pretrained model, on which nothing is fine-tuned before."""
    return run.sft.pretrained is not None and run.sft.traces is None


def is_fine_tuned(run: Run) -> bool:
    """True if a run makes the model that it starts from: it is not taken as it is, and does not come with the lab.

    What this machine's cache holds has no part in it.
    """
    if run.sft.pretrained is not None:
        return not taken_as_is(run)
    return shipped_model(tokenizer_and_key(run, None)[1]) is None


def tokenizer_and_key(run: Run, prepared: PreparedTraces | None) -> TokenizerAndKey:
    """The tokenizer of a run's base model, and the key by which the model is found."""
    tokenizer = base_tokenizer(run)
    return tokenizer, cache_key(run, tokenizer, prepared)


def base_model(
    run: Run,
    progress: Progress,
    tuner: StartTuner,
    cache: Path | None = None,
    saved: CheckpointNames | None = None,
    retry: Retry = once,
    prepared: PreparedTraces | None = None,
    looked_up: TokenizerAndKey | None = None,
) -> Path:
    """The folder (Hugging Face form: configuration, tokenizer, weights) of the model RL starts from.

    Args:
        run: the run; its `sft`, `model`, `tasks` and `seed` decide the model. A pretrained model is taken as it is,
            unless `SFT.traces` says on what to fine-tune it.
        progress: shows how far fine-tuning is.
        tuner: starts a trainer for it.
        cache: where models are kept. By default a model is taken from those that come with the lab, else it is kept in
            `~/.cache/scalelab/base`, or under `SCALELAB_CACHE`.
        saved: names of the checkpoints of the fine-tuning, which stay until the model is made; None takes none.
        retry: calls a part again with a new trainer after one is lost.
        prepared: the run's public traces, if `prepare_traces` has prepared them already.
        looked_up: what `tokenizer_and_key` gave, if it was called already.
    """
    start = None if run.sft.pretrained is None else pretrained(run, run.sft.pretrained)
    if start is not None and taken_as_is(run):
        return start
    prepared = prepared or prepare_traces(run, progress)
    tokenizer, key = looked_up or tokenizer_and_key(run, prepared)
    shipped = shipped_model(key) if cache is None else None
    cache = cache or cache_folder() / "base"
    folder = shipped or cache / (f"{key}-portable" if portable() else key)  # made with other kernels, it differs
    if folder.exists():
        progress.say(f"SFT: taken from {folder}{', which comes with the lab' if shipped else ''}")
    else:
        cache.mkdir(parents=True, exist_ok=True)
        examples: Examples = prepared or TaskTraces(run, tokenizer)
        facts = {} if prepared is None else {**prepared.facts, "start": str(start)}
        sft = replace(run.sft, pretrained=None if start is None else str(start))
        tuned = replace(run, sft=sft, seed=base_seed(run))
        with _only_maker(folder, progress):
            if not folder.exists():  # else a run beside this one has made it meanwhile
                with made_whole(folder, side_by_side=True) as partial:
                    save_tokenizer(tokenizer, partial, start)
                    make(tuned, examples, partial, progress, tuner, Saved(saved, run, folder.name), retry, facts)
    if saved is not None:
        shutil.rmtree(saved.root, ignore_errors=True)
    return folder


def shipped_model(key: str) -> Path | None:
    """The model with this key in the cache that comes with the lab; None if there is none."""
    return next((file.parent for file in SHIPPED.glob(f"*/{KEY}") if key in file.read_text().split()), None)


def weights_digest(folder: Path) -> str:
    """SHA-256 of a model's weight files: of each its name, its size, and its first and last `DIGESTED` bytes.

    Training changes weights everywhere, so the ends tell two models apart; all of a large one would take minutes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for at in dict.fromkeys((0, max(0, size - DIGESTED))):
                file.seek(at)
                digest.update(file.read(DIGESTED))
    return digest.hexdigest()


def prepare_traces(run: Run, progress: Progress) -> PreparedTraces | None:
    """The run's public traces, read, checked and tokenized; None if it has none.

    Raises:
        LabError: they cannot be used, and why.
    """
    if run.sft.public is None:
        return None
    return prepare(run, base_tokenizer(run), cache_folder() / "traces", progress.say)


@contextmanager
def _only_maker(folder: Path, progress: Progress) -> Iterator[None]:
    """Lock a model, so that concurrent runs make it once; the system frees the lock if this process dies.

    Raises:
        LabError: another process has held it for `MAKER_SECONDS`.
    """
    path, deadline, told = folder.with_name(f"{folder.name}.lock"), time.monotonic() + MAKER_SECONDS, False
    with open(path, "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() > deadline:
                raise LabError(f"waited {MAKER_SECONDS / 3600:.0f} h for the run that holds {path} to make its model")
            if not told:
                progress.say("SFT: waiting for another run, which makes the same model")
                told = True
            time.sleep(0.5)
        yield
