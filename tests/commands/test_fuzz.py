"""Files of any content are read by commands, or refused in one line: never a traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moe.checkpoint.folder import MANIFEST, STATE, check, digest, finished_checkpoints, read_manifest, write_manifest
from moe.durable import write_whole
from moe.errors import MoeError
from moe.model.architectures import architecture
from moe.model.families import Llama, Llama4Text, Mistral, Mixtral, Qwen2, Qwen3, Qwen3Moe
from moe.model.reading import read_config
from scalelab.cli import main
from scalelab.commands import grade
from scalelab.errors import LabError
from scalelab.experiment import resolve
from scalelab.reading import read_sources
from scalelab.run.books import new_books
from scalelab.run.checkpoint_store import CheckpointStore
from scalelab.store.folder import RunFolder
from scalelab.store.manifest import read_run_manifest
from scalelab.store.recovery import choose
from tasks.data.hub import SOURCES
from tasks.data.loading import load
from tasks.errors import TaskError
from tests.helpers.small_runs import write_run

DEEP = "[" * 100_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from(("math", "1e400")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these entries, and others."""
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=4), VALUES, max_size=5)


def text_of(*names: str) -> st.SearchStrategy[bytes]:
    """Bytes, text, or lines of objects."""
    lines = st.lists(objects(*names), max_size=3).map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
    return st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")) | lines


def answered(what: Callable[[], Any]) -> Any:
    """The result of a call; None if it is refused by an error that the command line prints in one line."""
    try:
        return what()
    except (LabError, MoeError, TaskError):
        return None


def test_a_message_is_one_line_whatever_it_quotes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "points.csv"
    file.write_bytes(b"\x1b[2Jname\x0b\x00,b\n1,2\n")
    assert main(["fit", str(file)]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert said.strip().isprintable()


quickly = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@quickly
@given(st.sampled_from(("math", "code")), text_of("id", "gold", "tests", "completion"))
@example("math", DEEP.encode())
@example("math", b'{"id": 1, "gold": ' + b"9" * 5000 + b', "completion": ""}')
def test_answers_to_grade(tmp_path: Path, task: str, content: bytes) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(content)
    answered(lambda: grade._read(file, task))


@pytest.mark.slow
@quickly
@given(
    st.sampled_from(("csv", "tsv", "jsonl", "json", "log", "parquet", "csv.gz")),
    text_of("compute", "pass_rate", "task", "run", "seed", "n", "step", "time", "stderr", "metric", "value"),
)
@example("json", DEEP.encode())
@example("jsonl", DEEP.encode())
@example("csv", b"compute,pass_rate\n1,\xff\n")
@example("csv", b"compute,pass_rate\n" + b"9" * 5000 + b",0.5\n")
def test_points_of_a_curve(tmp_path: Path, kind: str, content: bytes) -> None:
    file = tmp_path / f"points.{kind}"
    file.write_bytes(gzip.compress(content) if kind == "csv.gz" else content)
    answered(lambda: read_sources([file]))


NAMES = (
    *("question", "answer", "problem", "solution", "test", "tests", "entry_point", "prompt", "metadata"),
    *("starter_code", "public_test_cases", "private_test_cases", "input_output"),
)


@pytest.mark.slow
@quickly
@given(st.sampled_from(sorted(SOURCES)), text_of(*NAMES), st.booleans())
@example("gsm8k", DEEP.encode(), False)
@example("leetcode", DEEP.encode(), True)
@example("leetcode", b"", False)
def test_problems_of_a_data_set(tmp_path: Path, name: str, content: bytes, packed: bool) -> None:
    file = tmp_path / SOURCES[name].local
    file.parent.mkdir(parents=True, exist_ok=True)
    packed = packed and file.suffix == ".gz"
    file.write_bytes(gzip.compress(content)[: len(content) + 18] if packed else content)
    answered(lambda: load(name, str(tmp_path)))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects("status", "reason", "resumed", "wall_seconds", "cpu_seconds", "config_sha256", "held_out", "retention"))
@example({"status": "running", "resumed": 3})
@example({"status": "running", "wall_seconds": "x"})
def test_the_manifest_of_a_run_that_is_resumed(tmp_path: Path, manifest: dict[str, Any]) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    read = answered(lambda: read_run_manifest(tmp_path))
    if read is not None:  # what `--resume` does with it
        assert [*read.get("resumed", ()), 0.0]
        assert read.get("wall_seconds", 0.0) + 1.0 != "x"
        assert read.get("cpu_seconds", {"rl": 0.0}).get("rl", 0.0) + 1.0 != "x"


FAMILIES = [Llama, Llama4Text, Mistral, Mixtral, Qwen2, Qwen3, Qwen3Moe]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FAMILIES), st.data())
@example(Llama4Text, {"num_attention_heads": 0})
@example(Llama4Text, {"num_key_value_heads": 0, "head_dim": None})
@example(Llama4Text, {"no_rope_layer_interval": 0})
@example(Llama4Text, {"interleave_moe_layer_step": 0})
@example(Qwen3Moe, {"decoder_sparse_step": 0})
@example(Llama, {"num_hidden_layers": 10**12})
@example(Llama, {"model_type": []})
@example(Llama, DEEP)
def test_the_config_of_a_model(tmp_path: Path, family: Any, data: Any) -> None:
    """A stranger's `config.json` is a model, or refused: zero heads and intervals, too."""
    config = family().to_hf()
    strange = st.dictionaries(st.sampled_from(sorted(config)), VALUES | st.just(0), max_size=4)
    changes = data.draw(strange) if hasattr(data, "draw") else data
    text = changes if isinstance(changes, str) else json.dumps(config | changes)
    (tmp_path / "config.json").write_text(text)
    found = answered(lambda: architecture(read_config(tmp_path)))
    if found is not None:
        assert len(found.layers) == found.fields["num_layers"] >= 1
        assert found.fields["kv_channels"] >= 1


@pytest.fixture(scope="module")
def lab() -> Any:
    return resolve("quickstart", ["Evaluation.prompts=2", "Recipe.prompts_per_step=2"]).run


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    objects(*("schedule", "sampler", "ledger", "drawn", "dropped", "measured", "measure_from", "counts", "groups")),
    st.none() | VALUES,
)
def test_the_state_of_a_checkpoint(tmp_path: Path, lab: Any, changes: dict[str, Any], rollouts: Any) -> None:
    """A stranger's checkpoint may vouch for any state."""
    path = tmp_path / "run"
    if not path.exists():
        write_run(path)
    folder = RunFolder(path)
    checkpoint_store = CheckpointStore(lab, books := new_books(lab), folder, lambda _: None)
    newest = finished_checkpoints(path / "checkpoints")[-1]
    state = {**books.capture().written(folder.checkpoints), "rollouts": rollouts, **changes}
    write_whole(newest / STATE, json.dumps(state))
    files = {file.name: digest(file) for file in newest.iterdir() if file.name != MANIFEST}
    write_manifest(newest, replace(read_manifest(newest), model=lab.model.to_hf(), files=files))
    check(newest)
    answered(lambda: choose(path))
    loaded: list[Path] = []
    answered(lambda: checkpoint_store.go_back(loaded.append))
    folder.close()
