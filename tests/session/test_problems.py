"""A run on public data sets looks at problems, model and tokenizer before anything expensive starts."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from moe.model.families import Llama4Text, Qwen3
from moe.sequences import TrainingSequence
from moe.weights.hf_folder import save_folder
from moe.weights.links import shapes
from scalelab.cluster import actors
from scalelab.errors import LabError
from scalelab.experiment import Resolved, resolve
from scalelab.rollout.tokenizer import build_tokenizer, save_tokenizer
from scalelab.run.config import Run
from scalelab.session.problems import check_prompts, describe_tasks
from scalelab.session.session import execute
from scalelab.start import base_model as base_models
from scalelab.start.base_model import base_model
from scalelab.start.fine_tuning import LocalTuner
from scalelab.watch.progress import Progress
from tasks.data.hub import SOURCES
from tasks.errors import TaskError

pytestmark = pytest.mark.slow
TOKENIZER = build_tokenizer(["What is 1 + 1?"], 320)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, kept in (("gsm8k", 40), ("gsm8k_test", 5)):
        file = tmp_path / SOURCES[name].local
        file.parent.mkdir(exist_ok=True)
        rows = [{"question": f"What is {n} + {kept}?", "answer": f"#### {n + kept}"} for n in range(kept)]
        file.write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def resolved_on(data: Path, dataset: str = "gsm8k", sets: tuple[str, ...] = (), **fields: Any) -> Resolved:
    texts = {"dataset": dataset, "folder": str(data), "name": "words"}
    bound = [f"MathDataset.{name}={value!r}" for name, value in ({"held_out_size": 8} | texts | fields).items()]
    math_only = ("Run.tasks=(@MathDataset(),)", "Run.task_weights=None", "Evaluation.prompts=8")
    return resolve("quickstart", [*math_only, *bound, *sets])


def run_on(data: Path, dataset: str = "gsm8k", sets: tuple[str, ...] = (), **fields: Any) -> Run:
    return resolved_on(data, dataset, sets, **fields).run


def test_a_data_set_is_a_task_by_a_few_bindings_and_travels_through_the_saved_configuration(
    data: Path, tmp_path: Path
) -> None:
    run = run_on(data)
    assert [task.name for task in run.tasks] == ["words"]
    saved = tmp_path / "config.gin"
    file = resolve("quickstart", ["Run.tasks=(@MathDataset(),)", "Run.task_weights=None", "MathDataset.dataset='math'"])
    saved.write_text(file.config_gin())
    assert resolve(str(saved)).run == file.run


def test_the_manifest_says_where_the_problems_came_from(data: Path) -> None:
    facts = describe_tasks(run_on(data))["words"]
    assert (facts["dataset"], facts["train"], facts["held_out"]) == ("gsm8k", 32, 8)
    assert len(facts["sha256"]) == 64
    assert describe_tasks(resolve("quickstart").run) == {}


@pytest.mark.parametrize(
    ("dataset", "fields", "says"),
    [
        ("gsm8k_test", {}, "has nothing to train on: its problems are for evaluation only"),
        ("gsm8k", {"held_out_size": 40}, "nothing to train on: its problems are for evaluation only, or all"),
        ("math", {}, "put the data there"),
    ],
)
def test_data_that_will_not_do_are_said_so_first(data: Path, dataset: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises((LabError, TaskError), match=says) as caught:
        describe_tasks(run_on(data, dataset, **fields))
    assert "\n" not in str(caught.value)


def test_a_generator_of_fewer_problems_than_are_asked_for_is_said_so_first() -> None:
    sets = ["Run.tasks=(@MathMiniature(),)", "Run.task_weights=None", "MathMiniature.size=4000000"]
    few = [*sets, "MathMiniature.min_terms=2", "MathMiniature.max_terms=2", "MathMiniature.max_value=9"]
    with pytest.raises(
        TaskError, match=r"different training problems, 4000000 are asked for: lower MathMiniature\.size"
    ):
        describe_tasks(resolve("quickstart", few).run)


def test_prompts_that_leave_no_room_are_counted_whatever_way_they_are_asked(data: Path) -> None:
    run = run_on(data)
    longest = max(len(TOKENIZER.encode(run.tasks[0].prompt(n).text)) for n in range(32))
    for room, problem in ((longest, False), (longest - 1, True)):
        lengths = ("Recipe.max_tokens=80", f"GeneratorConfig.max_model_len={80 + room}")
        tight = run_on(data, sets=lengths)
        if problem:
            with pytest.raises(LabError, match=rf"of 32 prompts .*\(the longest {longest}\).*MathDataset.longest"):
                check_prompts(tight, TOKENIZER)
        else:
            check_prompts(tight, TOKENIZER)
    check_prompts(run_on(data, sets=lengths, max_tokens=79), TOKENIZER)
    with pytest.raises(LabError, match=r"leaves beside max_tokens of words \(the longest"):
        check_prompts(run_on(data, sets=("Recipe.max_tokens=90", *lengths[1:]), max_tokens=80), TOKENIZER)
    with pytest.raises(LabError, match="no chat template"):
        check_prompts(run_on(data, chat=True), TOKENIZER)


def test_a_pretrained_model_is_taken_if_it_is_the_runs_and_refused_by_what_differs(data: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"words: no worked examples to fine-tune a model on; let the task's problem"):
        base_model(run_on(data), Progress(), LocalTuner, tmp_path / "cache")
    folder = tmp_path / "model"
    folder.mkdir()
    run = run_on(data, sets=(f"SFT.pretrained={str(folder)!r}",))
    with pytest.raises(LabError, match="holds no model"):
        base_model(run, Progress(), LocalTuner)
    ours = run.model.to_hf()
    wanted = shapes(ours)
    save_folder(folder, ours, ((name, torch.zeros(shape)) for name, shape in wanted.items()), wanted)
    for content in (None, "{}", "{"):
        if content is not None:
            (folder / "tokenizer.json").write_text(content)
        with pytest.raises(LabError, match="no readable tokenizer"):
            base_model(run, Progress(), LocalTuner)
    save_tokenizer(TOKENIZER, folder)
    whole = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(LabError, match="no readable tokenizer"):
        base_model(run, Progress(), LocalTuner)
    (folder / "tokenizer.json").write_text(whole)
    assert base_model(run, Progress(), LocalTuner) == folder
    assert isinstance(run.model, Llama4Text)
    other = replace(run.model, hidden_size=256, vocab_size=999, attention_chunk_size=32).to_hf()
    (folder / "config.json").write_text(json.dumps(other))
    with pytest.raises(LabError, match=r"is not the run's model: .*hidden_size.*kinds of layers.*vocab_size") as error:
        base_model(run, Progress(), LocalTuner)
    for setting in ("hidden_size=256", "vocab_size=999", "attention_chunk_size=32"):
        assert f" --set Llama4Text.{setting}" in str(error.value)
    (folder / "config.json").write_text(json.dumps(Qwen3().to_hf()))
    with pytest.raises(LabError, match=r"bind Run\.model to a qwen3 of its shape"):
        base_model(run, Progress(), LocalTuner)


def test_a_model_that_is_not_there_is_said_before_ray_starts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*args: Any) -> None:
        raise AssertionError("Ray takes seconds to start")

    monkeypatch.setattr(actors, "start_ray", start)
    resolved = resolved_on(data, sets=("SFT.pretrained='lab/small'",))
    with pytest.raises(LabError, match=r"there is no folder .*lab/small; .* hub:ORG/NAME to download"):
        execute(resolved, tmp_path / "run", Progress())


@pytest.mark.parametrize("ends", [LabError("Ray did not start"), KeyboardInterrupt()])
def test_the_base_model_is_looked_up_while_ray_starts_and_no_ending_waits_for_it(
    ends: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = Event(), Event()

    def look_up(run: Run, prepared: object) -> None:
        asked.set()
        answered.wait(60)

    def start(*args: Any) -> None:
        assert asked.wait(60)
        raise ends

    monkeypatch.setattr(base_models, "tokenizer_and_key", look_up)
    monkeypatch.setattr(actors, "start_ray", start)
    began = time.monotonic()
    try:
        with pytest.raises(type(ends)):
            execute(resolve("quickstart"), tmp_path / "run", Progress())
        assert time.monotonic() - began < 50, "as a hub that does not answer would hold it up"
        assert [one for one in threading.enumerate() if not one.daemon] == [threading.main_thread()]
    finally:
        answered.set()


def test_a_stop_is_heeded_in_order_while_the_search_for_the_base_model_takes_longer_than_ray_s_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, before = Event(), signal.getsignal(signal.SIGTERM)

    def start(*args: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("Ray's own handler"))
        started.set()

    def look_up(run: Run, prepared: object) -> None:
        assert started.wait(60)
        deadline = time.monotonic() + 5
        while signal.getsignal(signal.SIGTERM) != signal.default_int_handler and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

    monkeypatch.setattr(base_models, "tokenizer_and_key", look_up)
    monkeypatch.setattr(actors, "start_ray", start)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(resolve("quickstart"), tmp_path / "run", Progress())
    finally:
        signal.signal(signal.SIGTERM, before)


class Counted:
    """A tuner that counts how often it is started, and is slow enough for another to ask meanwhile."""

    started = 0

    def __init__(self, run: Run) -> None:
        type(self).started += 1

    def begin(self, path: Path | None) -> None:
        pass

    def logprobs(self, sequences: list[TrainingSequence]) -> list[np.ndarray]:
        raise AssertionError("there is no trace whose tokens are weighed")

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        raise AssertionError("three steps are fewer than a checkpoint takes")

    def restart(self) -> None:
        raise AssertionError("it is never lost")

    def start_step(self, sequences: list[TrainingSequence], loss: Any, lr: float) -> Callable[[], float]:
        time.sleep(0.2)
        return lambda: 0.0

    def save_hf(self, folder: Path) -> None:
        (folder / "model.safetensors").touch()

    def close(self) -> None:
        pass


def test_runs_side_by_side_make_the_model_that_they_share_once(tmp_path: Path) -> None:
    run = resolve("quickstart", ["SFT.steps=3"]).run
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: base_model(run, Progress(), Counted, tmp_path), range(3)))
    assert len(set(made)) == 1
    assert (made[0] / "model.safetensors").exists()
    assert Counted.started == 1
