"""Fine-tuning goes on from its checkpoints: each step counts once, however often trainer or process are lost."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from smallest_run import SMALLEST

from moe.checkpoint.folder import (
    CheckpointPolicy,
    Manifest,
    digest,
    finished_checkpoints,
    publish,
    write_manifest,
)
from moe.durable import write_whole
from moe.sequences import TrainingSequence
from scalelab import signals
from scalelab.cluster import faults as faults_room
from scalelab.cluster.faults import Faults
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.run.config import Run
from scalelab.run.ports import TrainerLostError
from scalelab.run.settings import Cluster
from scalelab.start import base_model as room
from scalelab.start.base_model import base_model
from scalelab.start.fine_tuning import LocalTuner, Saved
from scalelab.store.folder import RunFolder
from scalelab.store.lease import FencedError, Lease, leases
from scalelab.store.publication import CheckpointNames, take_over
from scalelab.watch.progress import Progress

pytestmark = pytest.mark.slow
SETTINGS = {**SMALLEST, "SFT.steps": 7, "SFT.traces_per_step": 2, "SFT.checkpoint_every": 2}


@pytest.fixture(scope="module")
def run() -> Run:
    return resolve("quickstart", [f"{name}={value}" for name, value in SETTINGS.items()]).run


@pytest.fixture(autouse=True)
def _tokenizer_of_few_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "TOKENIZER_TRACES", 64)
    monkeypatch.setattr(faults_room, "PAUSES", (0.0,))


class Tuner:
    """A trainer whose weights are the batches that it was trained on, and that dies at the calls it is told to.

    Args:
        run: what is fine-tuned.
        deaths: numbers of its calls, counted over all its lives.
        error: what a death looks like.
    """

    def __init__(self, run: Run, deaths: Collection[int], error: type[BaseException] = TrainerLostError) -> None:
        self.run, self.deaths, self.error, self.calls, self.trained = run, deaths, error, 0, 0
        self.weights: list[int] | None = None

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.deaths:
            self.weights = None
            raise self.error(f"call {self.calls} lost a rank")

    def begin(self, path: Path | None) -> None:
        self._call()
        self.weights = [] if path is None else json.loads((path / "weights").read_text())

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        def done() -> float:
            self._call()
            assert self.weights is not None, "a lost trainer was trained on"
            self.weights.append(int(sum(int(one.tokens_T.sum()) for one in sequences)))
            self.trained += 1
            return 0.5

        return done

    def logprobs(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        raise AssertionError("there is no trace whose tokens are weighed")

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        self._call()
        fresh = path.with_name(f".{path.name}.writing")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        write_whole(fresh / "state.json", json.dumps(dict(state)))
        write_whole(fresh / "weights", json.dumps(self.weights))
        files = {file.name: digest(file) for file in fresh.iterdir()}
        write_manifest(fresh, Manifest(state["steps"], self.run.model.to_hf(), {}, 1, ("model", "state"), files))
        publish(fresh, path)

    def save_hf(self, folder: Path) -> None:
        self._call()
        write_whole(folder / "weights", json.dumps(self.weights))

    def restart(self) -> None:
        self.weights = None

    def close(self) -> None:
        pass


def names_of(sft: Path) -> CheckpointNames:
    """Names of a fine-tuning's checkpoints, as a process has them that goes on with it."""
    take_over(sft, None)
    return CheckpointNames(sft, 1, lambda: None)


def weights(folder: Path) -> list[int]:
    return json.loads((folder / "weights").read_text())


@pytest.fixture(scope="module")
def whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The weights of a fine-tuning that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "TOKENIZER_TRACES", 64)
        made = base_model(run, Progress(), lambda run: Tuner(run, set()), tmp_path_factory.mktemp("whole"))
    assert len(weights(made)) == 7
    return weights(made)


@pytest.mark.parametrize("deaths", [(1,), (4,), (5,), (9, 10), (3, 7, 11, 15), (12,)], ids=str)
def test_a_trainer_that_dies_is_replaced_and_goes_on_from_the_last_checkpoint(
    run: Run, whole: list[int], tmp_path: Path, deaths: tuple[int, ...]
) -> None:
    lines: list[dict[str, Any]] = []
    faults = Faults(Cluster(trainer_restarts=len(deaths)), lines.append, lambda _: None)
    tuners: list[Tuner] = []

    def start(run: Run) -> Tuner:
        tuners.append(Tuner(run, deaths))
        return tuners[0]

    made = base_model(
        run, Progress(), start, tmp_path / "cache", names_of(tmp_path / "sft"), faults.retry_with_new_trainer
    )
    assert weights(made) == whole
    assert [one["event"] for one in lines] == ["lost"] * len(deaths) + ["recovered"]
    assert tuners[0].calls <= 12 + 4 * len(deaths), "a death costs no more than the steps since a checkpoint"
    assert not (tmp_path / "sft").exists(), "its checkpoints go once the model is there"


def test_a_trainer_that_dies_too_often_ends_the_run(run: Run, tmp_path: Path) -> None:
    faults = Faults(Cluster(trainer_restarts=2), lambda _: None, lambda _: None)
    with pytest.raises(LabError, match="trainer_restarts allows no more"):
        base_model(
            run,
            Progress(),
            lambda run: Tuner(run, set(range(100))),
            tmp_path,
            names_of(tmp_path / "sft"),
            faults.retry_with_new_trainer,
        )
    assert not list(tmp_path.glob("*.partial"))


def test_another_process_goes_on_where_the_first_was_killed(run: Run, whole: list[int], tmp_path: Path) -> None:
    cache, sft = tmp_path / "cache", tmp_path / "sft"
    with pytest.raises(KeyboardInterrupt):
        base_model(run, Progress(), lambda run: Tuner(run, {8}, KeyboardInterrupt), cache, names_of(sft))
    second = Tuner(run, set())
    assert weights(base_model(run, Progress(), lambda _: second, cache, names_of(sft))) == whole
    assert second.calls < 10, "it did not begin anew"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", range(2, 9))
def test_a_signal_lets_the_step_end_and_loses_none_and_the_same_command_goes_on(
    run: Run, whole: list[int], tmp_path: Path, at: int, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    """Slurm's before the time limit, too; a second one ends at once."""
    cache, sft = tmp_path / "cache", tmp_path / "sft"
    before = signal.getsignal(number)

    class Signalled(Tuner):
        def _call(self) -> None:
            super()._call()
            if self.calls == at:
                signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        base_model(run, Progress(), lambda run: Signalled(run, set()), cache, names_of(sft))
    assert signal.getsignal(number) == before
    saved = weights(max(sft.glob("step_*")))
    *_, answer, last = capfd.readouterr().err.splitlines()
    assert answer == f"{number.name}: finishing the step and saving; again to stop at once"
    assert last == f"SFT: asked to stop, and saved at step {len(saved)}, from where it goes on"
    assert saved == whole[: len(saved)]
    second = Tuner(run, set())
    assert weights(base_model(run, Progress(), lambda _: second, cache, names_of(sft))) == whole
    assert second.trained == len(whole) - len(saved), "no step is taken twice"


@pytest.mark.parametrize(("same", "calls"), [(0.0, 5), (60.0, 6)])
def test_a_later_signal_ends_a_fine_tuning_at_once_and_the_same_one_twice_does_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: float, calls: int
) -> None:
    """A terminal's Ctrl-C comes once more from a parent that passes it on."""
    monkeypatch.setattr(signals, "SAME_SECONDS", same)

    class Impatient(Tuner):
        def _call(self) -> None:
            super()._call()
            if self.calls in (4, 5):
                signal.raise_signal(signal.SIGINT)

    tuner = Impatient(run, set())
    with pytest.raises(KeyboardInterrupt):
        base_model(run, Progress(), lambda run: tuner, tmp_path / "cache", names_of(tmp_path / "sft"))
    assert tuner.calls == calls


def test_a_damaged_checkpoint_is_named_and_passed_over(
    run: Run, whole: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, sft = tmp_path / "cache", tmp_path / "sft"
    with pytest.raises(KeyboardInterrupt):
        base_model(run, Progress(), lambda run: Tuner(run, {8}, KeyboardInterrupt), cache, names_of(sft))
    newest = max(sft.glob("step_*"))
    (newest / "weights").write_text("[1]")
    capsys.readouterr()
    assert weights(base_model(run, Progress(), lambda run: Tuner(run, set()), cache, names_of(sft))) == whole
    [said] = [line for line in capsys.readouterr().err.splitlines() if "cannot be used" in line]
    assert str(newest) in said


def test_a_process_that_lost_the_run_names_no_checkpoint_of_the_fine_tuning(run: Run, tmp_path: Path) -> None:
    first = RunFolder(tmp_path, Lease(tmp_path))
    names = first.sft_names()
    stale = Tuner(run, set())
    stale.begin(None)
    saved = Saved(names, run, "model")
    saved.take(stale, 2, [])
    lease = max(leases(tmp_path).items())[1]
    lease.write_text("{}")
    late = names.begin(4, CheckpointPolicy())
    stale.save(late, {"model": "model", "steps": 4})
    second = Saved(RunFolder(tmp_path, Lease(tmp_path, late=0.0)).sft_names(), run, "model")
    assert second.newest(print)[1] == 2, "what had no name yet is not gone on from"
    assert not late.exists()
    stale.save(late, {"model": "model", "steps": 4})
    with pytest.raises(FencedError):
        names.publish(instead=True)
    second.take(stale, 4, [])
    assert [one.name for one in finished_checkpoints(first.sft)] == ["step_000002", "step_000004"]


def test_the_real_trainer_makes_the_same_model_to_the_last_bit(run: Run, tmp_path: Path) -> None:
    class Killed(LocalTuner):
        """Ends, as a killed process does, with its fifth step."""

        steps = 0

        def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
            self.steps += 1
            if self.steps == 5:
                raise KeyboardInterrupt
            return super().start_step(sequences, loss, lr)

    straight = base_model(run, Progress(), LocalTuner, tmp_path / "one", names_of(tmp_path / "sft_one"))
    with pytest.raises(KeyboardInterrupt):
        base_model(run, Progress(), Killed, tmp_path / "two", names_of(tmp_path / "sft_two"))
    assert [path.name for path in (tmp_path / "sft_two").glob("step_*")] != []
    resumed = base_model(run, Progress(), LocalTuner, tmp_path / "two", names_of(tmp_path / "sft_two"))
    mine, theirs = load_file(resumed / "model.safetensors"), load_file(straight / "model.safetensors")
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
