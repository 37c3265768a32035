"""The model RL starts from: tokenizer and SFT on the tasks' own traces, cached by its inputs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from moe.checkpoint.folder import CheckpointPolicy, check, finished_checkpoints, read_state, step_folder
from moe.durable import put_in_place
from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.train.batch import TrainingSequence
from moe.train.config import TrainerConfig
from moe.weights.hf_folder import is_multimodal, write_text_model
from scalelab import __version__
from scalelab.errors import LabError
from scalelab.rollout.tokenizer import build_tokenizer, load_tokenizer, save_tokenizer
from scalelab.run.checkpoint_model import find_model
from scalelab.run.config import Run
from scalelab.run.packaged import PREFIX, packaged_model
from scalelab.run.progress import Progress
from tasks.miniature import Miniature
from tasks.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Traces the tokenizer learns its merges from, and which stand for the data in the cache's key.
TOKENIZER_TRACES = 4096
KEY_TRACES = 256
# Settings of the optimiser that say nothing of SFT: its own take the place of two, `precision` has one, and one changes
# where numbers are kept.
NOT_SFT = ("lr", "warmup_steps", "moments", "offload")
# How long one run may wait while another makes the model that both start from.
MAKER_SECONDS = 24 * 3600.0
ROUTER_CHOICES = ("balance", "z_loss", "expert_bias", "freeze_router")


def traces(run: Run, first: int, count: int) -> list[tuple[Prompt, str]]:
    """`count` SFT examples from number `first` on, the tasks taken in turn.

    Raises:
        LabError: a task has no worked examples.
    """
    traced = [task for task in run.tasks if isinstance(task, Miniature)]
    if len(traced) < len(run.tasks):
        names = ", ".join(task.name for task in run.tasks if not isinstance(task, Miniature))
        raise LabError(f"{names}: no worked examples to fine-tune a model on; bind SFT.pretrained")
    return [traced[number % len(traced)].trace(number // len(traced)) for number in range(first, first + count)]


def base_tokenizer(run: Run) -> PreTrainedTokenizerFast:
    """The tokenizer of the run's models: the pretrained one's, or one learnt from the traces, the same each time."""
    if run.sft.pretrained is not None:
        return load_tokenizer(pretrained(run, run.sft.pretrained))
    examples = traces(run, 0, TOKENIZER_TRACES)
    return build_tokenizer((prompt.text + completion for prompt, completion in examples), run.model.vocab_size)


def pretrained(run: Run, folder: str) -> Path:
    """The Hugging Face folder to start from, checked for the run's model and a tokenizer.

    Args:
        run: the run.
        folder: a folder, or `package:NAME` for the model in a GGUF file of an installed Python package.

    Raises:
        LabError: it does not, naming what differs.
    """
    if folder.startswith(PREFIX):
        found = find_model(packaged_model(folder.removeprefix(PREFIX), _cache()))
    else:
        found = find_model(Path(folder).expanduser().absolute())
    here, there = architecture(run.model.to_hf()), architecture(found.hf_config)
    different = sorted(name for name in here.fields if here.fields[name] != there.fields.get(name))
    if here.layers != there.layers:
        different.append("kinds of layers")
    if run.model.vocab_size != found.hf_config["vocab_size"]:
        different.append("vocab_size")
    if different or here != there:
        raise LabError(
            f"SFT.pretrained = {folder!r} is not the run's model: {', '.join(different) or 'other weights'} differ; "
            "bind Run.model to its shape"
        )
    found.tokenizer()
    return _text_model(found.path) if is_multimodal(found.path) else found.path


def _text_model(folder: Path) -> Path:
    """The text model of a multimodal folder, written once into the cache: engines load no part of a larger model."""
    stamp = f"{folder.resolve()} {(folder / 'config.json').stat().st_mtime_ns}"
    target = _cache() / f"text-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if not target.exists():
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            write_text_model(folder, partial)
            put_in_place(partial, target)
        except MoeError as error:
            raise LabError(f"{folder}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def cache_key(run: Run, tokenizer: Any) -> str:
    """Hash of everything the base model depends on: architecture, precision, data, SFT and seed, but not the recipe.

    The data are hashed as the model sees them, so a change in how traces are made or tokenized makes another model.
    """
    examples = [tokenizer.encode(prompt.text + completion) for prompt, completion in traces(run, 0, KEY_TRACES)]
    content = {
        "version": __version__,
        "model": run.model.to_hf(),
        "precision": _precision(run.trainer),
        "routers": [getattr(run.trainer, name) for name in ROUTER_CHOICES],
        "optimizer": {name: value for name, value in asdict(run.trainer.optimizer).items() if name not in NOT_SFT},
        "tasks": [asdict(cast(Any, task)) for task in run.tasks],
        "sft": [run.sft.steps, run.sft.traces_per_step, run.sft.learning_rate],
        "seed": base_seed(run),
        "examples": examples,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _precision(trainer: TrainerConfig) -> str:
    moments = trainer.optimizer.moments
    return trainer.dtype if moments == "float32" else f"{trainer.dtype}, moments in {moments}"


class Tuner(Protocol):
    """A trainer for supervised fine-tuning. Where it can be lost, its methods raise `TrainerLostError`."""

    def begin(self, path: Path | None) -> None:
        """Be ready to train, from a checkpoint or from the initial weights."""

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        """Start an optimiser step, and return a function that waits for its loss."""

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take a checkpoint."""

    def save_hf(self, folder: Path) -> None:
        """Write the weights into a Hugging Face folder."""

    def restart(self) -> None:
        """Put another trainer in the place of a lost one."""

    def close(self) -> None:
        """Give devices and memory back."""


StartTuner = Callable[[Run], Tuner]

SeeThrough = Callable[[Callable[[], None], Callable[[], None]], None]
"""Function of (attempt, replace): makes the attempt; while it loses the trainer, replaces that and tries again."""


def once(attempt: Callable[[], None], replace: Callable[[], None]) -> None:
    """Make one attempt, with a trainer in this process: if that is lost, so is the process."""
    attempt()


class LocalTuner:
    """Tuner whose trainer is in this process."""

    def __init__(self, run: Run) -> None:
        import tempfile

        from moe.train.trainer import Trainer

        self._folder = tempfile.TemporaryDirectory(prefix="scalelab-sft-")
        self._trainer = Trainer(run.model.to_hf(), run.trainer_config, rendezvous=f"file://{self._folder.name}/meet")

    def begin(self, path: Path | None) -> None:
        """Go on from a checkpoint, or from the initial weights."""
        if path is not None:
            self._trainer.load(path)

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        """Take an optimiser step."""
        result = self._trainer.train_step(sequences, loss, lr)
        return lambda: result.loss

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take a checkpoint."""
        self._trainer.save(path, dict(state), keep=CheckpointPolicy())

    def save_hf(self, folder: Path) -> None:
        """Write the weights into a Hugging Face folder."""
        self._trainer.save_hf(folder)

    def restart(self) -> None:
        """Fail: if this trainer is lost, so is the process."""
        raise AssertionError("unreachable: this process is the trainer")

    def close(self) -> None:
        """Give the memory back."""
        self._trainer.close()
        self._folder.cleanup()


def base_seed(run: Run) -> int:
    """The seed of the base model."""
    return run.seed if run.sft.seed is None else run.sft.seed


def base_model(
    run: Run,
    progress: Progress,
    tuner: StartTuner,
    cache: Path | None = None,
    saved: Path | None = None,
    see_through: SeeThrough = once,
) -> Path:
    """The folder (Hugging Face form: configuration, tokenizer, weights) of the model RL starts from.

    Args:
        run: the run; its `sft`, `model`, `tasks` and `seed` decide the model.
        progress: shows how far fine-tuning is.
        tuner: starts a trainer for it.
        cache: where models are kept; `~/.cache/scalelab/base` by default, or under `SCALELAB_CACHE`.
        saved: where checkpoints of the fine-tuning lie until the model is made; None takes none.
        see_through: what is done about a trainer that is lost.
    """
    cache = cache or _cache()
    if run.sft.pretrained is not None:
        return pretrained(run, run.sft.pretrained)
    tokenizer = base_tokenizer(run)
    folder = cache / cache_key(run, tokenizer)
    if folder.exists():
        progress.say(f"SFT: taken from {folder}")
    else:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_maker(folder, progress):
            if not folder.exists():  # else a run beside this one has made it meanwhile
                partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
                try:
                    save_tokenizer(tokenizer, partial)
                    _make(run, tokenizer, partial, progress, tuner, Saved(saved, run, folder.name), see_through)
                    put_in_place(partial, folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    if saved is not None:
        shutil.rmtree(saved, ignore_errors=True)
    return folder


@contextmanager
def _only_maker(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a model, so that runs side by side make it once; the system frees it if its holder dies.

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


def _cache() -> Path:
    """Folder of the models that runs start from; absolute, for actors are elsewhere."""
    return Path(os.environ.get("SCALELAB_CACHE", Path.home() / ".cache" / "scalelab")).absolute() / "base"


@dataclass(frozen=True)
class Saved:
    """Checkpoints of a fine-tuning.

    Attributes:
        root: their folder; None takes none.
        run: what is fine-tuned.
        key: name of the base model that is to come of it; checkpoints of another are not gone on from.
    """

    root: Path | None
    run: Run
    key: str

    def newest(self) -> tuple[Path | None, int]:
        """Find the newest whole checkpoint and its number of steps; (None, 0) if there is none."""
        for path in reversed(finished_checkpoints(self.root) if self.root is not None else []):
            with suppress(MoeError, OSError):
                check(path, self.run.model.to_hf())
                state = read_state(path)
                if state.get("model") == self.key and isinstance(steps := state.get("steps"), int):
                    return path, steps
        return None, 0

    def take(self, model: Tuner, steps: int) -> None:
        """Take a checkpoint after this many steps, if one is due."""
        if self.root is not None and steps % self.run.sft.checkpoint_every == 0:
            self.root.mkdir(exist_ok=True)
            model.save(step_folder(self.root, steps), {"model": self.key, "steps": steps})


def _make(
    run: Run,
    tokenizer: Any,
    folder: Path,
    progress: Progress,
    tuner: StartTuner,
    saved: Saved,
    see_through: SeeThrough,
) -> None:
    """Fine-tune a model into a folder that holds the tokenizer already."""
    progress.say(f"SFT: {run.sft.steps} steps of {run.sft.traces_per_step} traces; starting the trainer")
    # Recipes that are compared start from one model, whatever precision they choose for the head.
    recipe = replace(run.recipe, fp32_head="both")
    with closing(tuner(replace(run, recipe=recipe, seed=base_seed(run)))) as model:

        def attempt() -> None:
            _fine_tune(run, tokenizer, model, progress, saved)
            model.save_hf(folder)

        see_through(attempt, model.restart)


def _fine_tune(run: Run, tokenizer: Any, model: Tuner, progress: Progress, saved: Saved) -> None:
    """Train from the newest checkpoint on; the next batch is made while the trainer works on the last."""
    sft, began = run.sft, time.monotonic()
    pending: Callable[[], float] | None = None
    loss = math.nan
    path, first = saved.newest()
    model.begin(path)
    if path is not None:
        progress.say(f"SFT: going on from step {first}")
    with progress.work("SFT", sft.steps, "steps") as advance:
        for step, batch in enumerate(_batches(run, tokenizer, first), first):
            if pending is not None:
                loss = pending()
                advance(step, f"loss {loss:.3f}")
                saved.take(model, step)
            pending = model.start_step(batch, cross_entropy, learning_rate(step, sft.steps, sft.learning_rate))
    if pending is not None:
        progress.say(f"SFT: done in {time.monotonic() - began:.0f} s, loss {pending():.3f}")


def _batches(run: Run, tokenizer: Any, first: int) -> Iterator[list[TrainingSequence]]:
    for step in range(first, run.sft.steps):
        examples = traces(run, step * run.sft.traces_per_step, run.sft.traces_per_step)
        prompts = tokenizer([prompt.text for prompt, _ in examples])["input_ids"]
        answers = tokenizer([text for _, text in examples], add_special_tokens=False)["input_ids"]
        total = sum(len(answer) + 1 for answer in answers)
        yield [
            trace_sequence(prompt, [*answer, tokenizer.eos_token_id], total)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]


def trace_sequence(prompt_ids: list[int], answer_ids: list[int], total: int) -> TrainingSequence:
    """One SFT example: every answer token weighs 1/total, so that a step's loss is the mean over its answer tokens."""
    weights_T = np.zeros(len(prompt_ids) + len(answer_ids), dtype=np.float32)
    weights_T[len(prompt_ids) :] = 1.0 / total
    return TrainingSequence(np.array(prompt_ids + answer_ids, dtype=np.int32), {"weights": weights_T})


def cross_entropy(logprobs_T: Any, entropy_T: Any, extras: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """−Σ_t w_t · log π(y_t | y_<t): the SFT loss in nats per answer token, as a plain sum over tokens."""
    return -(extras["weights"] * logprobs_T).sum(), {}


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first 5 % of the steps, then a cosine from `peak` down to a tenth of it."""
    warmup = max(1, round(0.05 * steps))
    if step < warmup:
        return peak * (step + 1) / warmup
    along = (step - warmup) / max(1, steps - warmup)
    return peak * (0.55 + 0.45 * math.cos(math.pi * along))
