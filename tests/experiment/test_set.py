"""`--set`: what a bare word stands for, what is refused, and that no text makes another run of it silently."""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from scalelab.errors import LabError
from scalelab.experiment import resolve, settings_in
from scalelab.experiment.lab import LAB
from scalelab.experiment.library import listing
from scalelab.experiment.overrides import set_statement
from scalelab.experiment.resolve import Heading, resolve_statements
from scalelab.run.books import new_books
from tests.helpers.experiment_toys import TOYS, ToyClip, ToyRun, ToyTrainer

T = TypeVar("T")
BASE = "ToyRun.loss = @ToyClip()\nToyTrainer.steps = 7\n"


def build(*sets: str) -> ToyRun:
    statements = TOYS.parse(BASE, lambda line: f"file.gin:{line}")
    given = [set_statement(text, TOYS) for text in sets]
    run: ToyRun = resolve_statements(TOYS, Heading("toy", "A toy.", "toy.py:1"), statements, given).run
    return run


def attempt(make: Callable[[], T]) -> tuple[T | None, str]:
    """The result of a call, or its message of one line."""
    try:
        return make(), ""
    except LabError as error:
        message = str(error)
    assert message
    assert message.isprintable(), "one line"
    return None, message


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("TrainerConfig.dtype=bfloat16", "TrainerConfig.dtype", "bfloat16"),
        ("Recipe.loss=DAPO", "Recipe.loss", "@DAPO()"),
        ("Recipe.loss=@DAPO", "Recipe.loss", "@DAPO()"),
        ("Recipe.loss=DAPO()", "Recipe.loss", "@DAPO()"),
        ("Recipe.loss = @DAPO()", "Recipe.loss", "@DAPO()"),
        ("Recipe.aggregation=token", "Recipe.aggregation", "token"),
        ("Recipe.advantage_norm=prompt", "Recipe.advantage_norm", "prompt"),
        ("Recipe.length_control=None", "Recipe.length_control", None),
        ("Run.schedule=Synchronous", "Run.schedule", "@Synchronous()"),
        ("SFT.pretrained=/models/a model", "SFT.pretrained", "/models/a model"),
        ("SFT.pretrained=package:some_thing", "SFT.pretrained", "package:some_thing"),
        ("SFT.pretrained=models/a#2", "SFT.pretrained", "models/a#2"),
        ("SFT.pretrained='a#2'", "SFT.pretrained", "a#2"),
        ("Recipe.router_replay=true", "Recipe.router_replay", True),
        ("OptimizerConfig.lr=3e-4", "OptimizerConfig.lr", 3e-4),
        ("trainer/OptimizerConfig.betas=[0.5, 0.5]", "OptimizerConfig.betas", (0.5, 0.5)),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(text: str, key: str, value: object) -> None:
    assert resolve("quickstart", [text]).bindings[key] == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("TrainerConfig.dtype=bf16", "TrainerConfig.dtype must be 'float32' or 'bfloat16', not 'bf16'; did you mean"),
        ("Recipe.loss=DPAO", "there is no configurable 'DPAO'; did you mean 'DAPO'?"),
        ("Recipe.loss=Layout", "Recipe.loss must be Loss, not @Layout(): Layout has no __call__; there are @CISPO()"),
        ("OptimizerConfig.lr=fast", "fast is not a value"),
        ("OptimizerConfig.lr=3e-4 # slow", "write one CLASS.FIELD=VALUE, without a comment"),
        ("OptimizerConfig.lr=nan", "nan is not a value"),
        ("OptimizerConfig.lr=1e400", "must be float at least 0, not inf: give a finite number"),
        ("OptimizerConfig.lr=-1", "must be float at least 0, not -1"),
        ("lr=3e-4", "has no effect: did you mean OptimizerConfig.lr?"),
        ("batch=3", "has no effect: nothing uses %batch"),
        ("OptimizerConfig.lr", "write it as CLASS.FIELD=VALUE"),
        ("OptimizerConfig.lr=", "write it as CLASS.FIELD=VALUE"),
        ("OptimizerConfig.lr=1\nRun.seed=2", "write it as CLASS.FIELD=VALUE"),
        ("Llama4Text.hidden_size=-1", "Llama4Text.hidden_size must be int above 0, not -1"),
        ("Llama4Text.num_hidden_layers=0", "Llama4Text.num_hidden_layers must be int above 0, not 0"),
        ("Llama4Text.num_key_value_heads=0", "must be int above 0, not 0"),
        ("Llama4Text.num_attention_heads=0", "must be int above 0, not 0"),
        ("Llama4Text.interleave_moe_layer_step=0", "must be int above 0, not 0"),
        ("Llama4Text.no_rope_layer_interval=0", "must be int above 0, not 0"),
        ("Llama4Text.head_dim=33", "Llama4Text.head_dim must be int above 0 and a multiple of 2, not 33"),
        ("SFT.learning_rate=-1", "SFT.learning_rate must be float at least 0, not -1"),
        ("Run.seed=" + "[" * 100_000, "brackets within brackets"),
        ("Run.seed=" + "[" * 50 + "]" * 50, "brackets within brackets"),
        ("Run.seed=" + "9" * 100_000, "Run.seed"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_short_line(text: str, says: str) -> None:
    _, message = attempt(lambda: resolve("quickstart", [text]))
    assert says in message
    assert len(message) < 1000


def test_a_long_text_is_taken_whole() -> None:
    assert resolve("quickstart", [f"SFT.pretrained='{'x' * 100_000}'"]).run.sft.pretrained == "x" * 100_000


FIELDS = [f"{name}.{parameter}" for name, cls in LAB.classes.items() for parameter in LAB.parameters(cls)]
EDGES = [
    "0",
    "-1",
    "1",
    "2",
    "1e400",
    "-0.0",
    "0.5",
    "1e-320",
    "9" * 25,
    "None",
    "True",
    "()",
    "''",
    "'x'",
    "[1]",
    "{}",
    "x",
]


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(st.sampled_from(FIELDS), st.sampled_from(EDGES) | st.text(max_size=20))
@example("Llama4Text.no_rope_layer_interval", "0")
@example("Llama4Text.rope_theta", "0")
def test_every_field_of_the_lab_takes_a_value_as_it_is_or_refuses_it_in_one_line(field: str, value: str) -> None:
    resolved, _ = attempt(lambda: resolve("quickstart", [f"{field}={value}"]))
    if resolved is None:
        return
    taken = resolved.bindings[field] if field in resolved.bindings else value.strip()
    try:
        literal: Any = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        assert taken in (value.strip(), value.strip().lower() == "true") or str(taken).strip("@()") in value
    else:
        literal = tuple(literal) if isinstance(literal, list) else literal
        as_float = float(literal) if isinstance(taken, float) else literal
        assert taken in (literal, as_float, value.strip()), "what was given is what the run has"


texts = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["ToyRun", ".", "seed", "note", "=", "/", "@", "ToyClip", "()", "%", "'", '"', "#", "1", "\n", " ", "["]
    )
).map("".join)


@settings(deadline=None, max_examples=400)
@given(texts)
def test_no_text_after_set_ends_in_anything_but_a_run_or_one_line(text: str) -> None:
    run, _ = attempt(lambda: build(text))
    if run == ToyRun(ToyClip(), ToyTrainer(7)):
        assert text.partition("=")[2].strip().strip("@()") in ("0", "ToyClip", "None"), "a default, bound again"


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=80) | st.binary(max_size=80))
@example(b"\xff\xfe\x00")
@example("A.b = " + "[" * 100_000)
@example("A.b = " + "(" * 150 + ")" * 150)
@example("A.b = " + "9" * 5000)
def test_reading_settings_from_any_file_is_a_dict_or_one_line(content: str | bytes) -> None:
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    found, _ = attempt(lambda: settings_in(text, "config.gin"))
    assert all("." in key for key in found or {})


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.gin"
    with open(file, "wb") as sparse:
        sparse.truncate(2**33)
    with pytest.raises(LabError, match="larger than 4 MiB: that is no configuration"):
        resolve(str(file))


def test_empty_lines_change_no_setting() -> None:
    """Paragraphs are read one by one; a value or a text with an empty line in it is still one."""
    lines = ["A.a = (1,", "2)", "A.b = '''one", "B.a = 3", "two'''", "# B.c = 1", 's/C.d = {"x": @B()}', "A.a = 7"]
    for gap in range(len(lines)):
        text = "\n".join(lines[:gap]) + "\n\n" + "\n".join(lines[gap:]) + "\n"
        inside = text.split("'''")[1]
        assert settings_in(text, "x") == {"A.a": 7, "A.b": inside, "s/C.d": {"x": "@B()"}}, gap
    with pytest.raises(LabError, match=r"^x:4: "):
        settings_in("A.a = 1\n\nA.b = 2\nA.c = nothing\n", "x")


def test_the_settings_in_a_saved_configuration_are_its_bindings() -> None:
    resolved = resolve("quickstart")
    assert settings_in(resolved.config_gin(origins=True), "config.gin") == resolved.bindings


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_configuration_is_refused_or_says_what_it_says(data: st.DataObject) -> None:
    """Truncated or overwritten anywhere: one line, or a run whose settings are those that the text has."""
    text = resolve("quickstart").config_gin()
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.sampled_from(["", "\x00", "=", "'", "[" * 40, "é", "\n", " 1"])) + text[at + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.gin"
        file.write_text(damaged)
        resolved, _ = attempt(lambda: resolve(str(file)))
        if resolved is not None:
            told = settings_in(damaged, str(file))
            assert {key: told[key] for key in told if key in resolved.bindings}.items() <= resolved.bindings.items()


def test_a_broadcast_over_nccl_is_refused_where_the_devices_are_cores() -> None:
    refusal = r"^.*Cluster.publication = 'nccl' is for GPUs, and .* are cores: leave it out"
    with pytest.raises(LabError, match=refusal):
        resolve("quickstart", ["Cluster.publication=nccl"])


def test_weights_are_broadcast_wherever_there_are_several_gpus() -> None:
    """Every experiment on GPUs of its own for each side; one shared GPU, and cores, take files."""
    for name in (one.name for one in listing()[0]):
        cluster = resolve(name).run.cluster
        several = cluster.device == "gpu" and not cluster.share_devices
        assert cluster.publication == ("nccl" if several else "files"), name


def test_what_only_a_gpu_has_is_refused_on_cores_before_anything_starts() -> None:
    with pytest.raises(LabError, match="is for GPUs, and the run's devices are cores: leave it out, or bind"):
        resolve("quickstart", ["TrainerConfig.kernels=transformer_engine"])


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (["Cluster.trainers=2"], "1 generators and 2 trainers on nodes of 8 devices cannot be paired"),
        (["Cluster.trainers=9", "Cluster.generators=9"], "9 generators and 9 trainers on nodes of 8 devices cannot be"),
        (["Cluster.publication=nccl"], "needs a device for each side"),
        (["GeneratorConfig.tensor_parallel=3"], "GeneratorConfig.tensor_parallel is 3, set it to 1"),
    ],
)
def test_shared_devices_are_refused_where_there_are_no_pairs(settings: list[str], refusal: str) -> None:
    with pytest.raises(LabError, match=re.escape(refusal)) as refused:
        resolve("smollm2_one_gpu", settings)
    assert "\n" not in str(refused.value)


def test_hardware_that_is_not_in_the_table_is_refused_when_it_is_bound() -> None:
    with pytest.raises(LabError, match="no hardware 'z100' in the table: there are a100") as refused:
        resolve("quickstart", ["Cluster.hardware=z100"])
    assert "\n" not in str(refused.value)


def test_engines_with_too_few_places_for_a_group_are_refused() -> None:
    with pytest.raises(LabError, match="a group has 8 completions, and all engines together take 6 at a time: raise"):
        resolve("quickstart", ["GeneratorConfig.max_sequences=4"])
    assert resolve("quickstart", ["GeneratorConfig.max_sequences=5"]).run.generator.max_sequences == 5


@pytest.mark.parametrize(("engines", "aside"), [(0, 0), (1, 1), (3, 3), (0.25, 1), (0.3, 1), (0.9, 3), (0.1, 0)])
def test_a_share_of_the_engines_is_set_aside_for_an_evaluation_and_one_goes_on(engines: float, aside: int) -> None:
    run = resolve("quickstart", ["Cluster.generators=4", f"Evaluation.engines={engines}"]).run
    assert run.evaluation.engines_of(4) == aside
    assert run.evaluation.engines_of(1) == (0 if engines < 1 else engines)


@pytest.mark.parametrize(
    ("engines", "refusal"),
    [
        ("2", "Evaluation.engines (2) leaves none of Cluster.generators (2) to go on: set fewer aside, or 0"),
        ("1.5", "Evaluation.engines must be int at least 0 or float above 0 and below 1, not 1.5"),
        ("-1", "Evaluation.engines must be int at least 0 or float above 0 and below 1, not -1"),
    ],
)
def test_engines_that_cannot_be_set_aside_are_refused_in_one_line(engines: str, refusal: str) -> None:
    with pytest.raises(LabError, match=re.escape(refusal)) as refused:
        resolve("quickstart", ["Cluster.generators=2", f"Evaluation.engines={engines}"])
    assert "\n" not in str(refused.value)


def test_large_clusters_evaluate_on_a_quarter_of_their_engines() -> None:
    large = {"h100/scalerl_8b": 16, "h100/scalerl_8b_node": 1, "scalerl_17bx16": 4, "h100/scalerl_17bx16": 2}
    for experiment, aside in large.items():
        run = resolve(experiment).run
        assert run.evaluation.engines_of(run.cluster.generators) == aside, experiment


def test_shared_devices_count_once_and_each_role_pays_half() -> None:
    run = resolve("smollm2_one_gpu", ["Cluster.generators=4", "Cluster.trainers=4"]).run
    assert run.devices == 4
    ledger = new_books(run).ledger
    ledger.advance(3600.0, evaluation_share=0.0, trainer_idle=False)
    assert ledger.hours == {"generator": 2.0, "trainer": 2.0, "evaluation": 0.0, "faults": 0.0}
