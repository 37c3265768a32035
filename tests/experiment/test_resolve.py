from __future__ import annotations

import re
from dataclasses import replace

import gin
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scalelab.errors import LabError
from scalelab.experiment.resolve import Heading, resolve_statements
from scalelab.experiment.resolved import Resolved
from tests.helpers.experiment_toys import TOYS, ToyClip, ToyOptimizer, ToyRun, ToyTask, ToyTrainer, ToyTruncate

BASE = "ToyRun.loss = @ToyClip()\nToyTrainer.steps = 7\n"


def resolve(text: str, *sets: str) -> Resolved:
    statements = TOYS.parse(text, lambda line: f"file.gin:{line}")
    bound = [replace(statement, origin=f"--set {given}") for given in sets for statement in TOYS.parse(given, str)]
    return resolve_statements(TOYS, Heading("toy", "A toy.", "toy.py:1"), statements, bound)


def complaint(text: str, *sets: str) -> str:
    with pytest.raises(LabError) as caught:
        resolve(text, *sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What a configuration comes to.


def test_what_nothing_binds_keeps_its_default_and_objects_need_no_binding() -> None:
    run = resolve(BASE).run
    assert run == ToyRun(ToyClip(), ToyTrainer(7))
    assert type(run) is ToyRun
    assert type(run.trainer.warmup) is ToyOptimizer


def test_later_bindings_and_then_sets_win() -> None:
    resolved = resolve(BASE + "ToyRun.seed = 1\n", "ToyRun.seed = 3", "ToyRun.note = 'x'")
    assert (resolved.run.seed, resolved.run.note) == (3, "x")
    assert resolved.origins["ToyRun.seed"] == "--set ToyRun.seed = 3"


def test_every_field_has_a_value_and_an_origin() -> None:
    resolved = resolve(
        BASE + "warm = 0.25\nToyTrainer:\n    dtype = 'bfloat16'\ntrainer/warmup/ToyOptimizer.lr = %warm\n"
    )
    assert resolved.bindings["ToyTrainer.dtype"] == "bfloat16"
    assert resolved.bindings["ToyRun.loss"] == "@ToyClip()"
    assert resolved.origins["ToyTrainer.dtype"] == "file.gin:5"
    assert resolved.origins["trainer/warmup/ToyOptimizer.lr"] == "file.gin:6, file.gin:3"
    assert resolved.origins["trainer/optimizer/ToyOptimizer.lr"] == "default"
    assert resolved.bindings.keys() == resolved.origins.keys()


def test_a_place_is_a_scope_and_the_closest_scope_wins() -> None:
    text = (
        BASE + "ToyOptimizer.lr = 1.0\ntrainer/ToyOptimizer.betas = (0.0, 0.0)\ntrainer/warmup/ToyOptimizer.lr = 2.0\n"
    )
    trainer = resolve(text).run.trainer
    assert trainer.optimizer == ToyOptimizer(1.0, (0.0, 0.0))
    assert trainer.warmup == ToyOptimizer(2.0, (0.0, 0.0))


def test_references_with_scopes_configure_several_objects_of_a_class() -> None:
    text = BASE + (
        "ToyRun.tasks = (@math/ToyTask(), @code/ToyTask())\n"
        "math/ToyTask.name = 'math'\ncode/ToyTask.name = 'code'\nToyTask.weight = 3\ncode/ToyTask.levels = [4]\n"
    )
    resolved = resolve(text)
    assert resolved.run.tasks == (ToyTask("math", 3.0), ToyTask("code", 3.0, (4,)))
    assert resolved.bindings["ToyRun.tasks"] == ("@math/ToyTask()", "@code/ToyTask()")


def test_bindings_of_what_was_not_chosen_are_reported_without_harm() -> None:
    resolved = resolve(BASE + "ToyTruncate.limit = 4.0\n", "ToyRun.seed = 1")
    assert [statement.key for statement in resolved.unused] == ["ToyTruncate.limit"]


# Text that says it all.


finite = st.floats(allow_nan=False, allow_infinity=False)
optimizers = st.builds(ToyOptimizer, st.floats(0.0, 1e300), st.tuples(finite, st.floats(-1e9, 1e9)))
runs = st.builds(
    ToyRun,
    loss=st.builds(ToyClip, st.floats(0.0, 1.0), st.floats(0.0, 1.0)) | st.builds(ToyTruncate, st.floats(0.0, 9.0)),
    trainer=st.builds(
        ToyTrainer,
        steps=st.integers(3, 10**20),
        optimizer=optimizers,
        warmup=optimizers,
        dtype=st.sampled_from(["float32", "bfloat16"]),
        fused=st.booleans(),
    ),
    tasks=st.lists(st.builds(ToyTask, st.text(), finite, st.lists(st.integers()).map(tuple)), max_size=3).map(tuple),
    shares=st.dictionaries(st.text(), finite, max_size=3),
    note=st.none() | st.text(),
    seed=st.integers(),
)


def gin_text(run: ToyRun) -> str:
    """A configuration that binds every field of a run by hand, independently of `config_gin`."""

    loss, trainer = run.loss, run.trainer
    scopes = [f"task_number_{i}" for i in range(len(run.tasks))]
    lines = [
        f"ToyRun.loss = @{type(loss).__name__}()",
        *(f"{type(loss).__name__}.{name} = {item!r}" for name, item in vars(loss).items()),
        *(f"ToyTrainer.{name} = {getattr(trainer, name)!r}" for name in ("steps", "dtype", "fused")),
        *(f"trainer/optimizer/ToyOptimizer.{name} = {item!r}" for name, item in vars(trainer.optimizer).items()),
        *(f"trainer/warmup/ToyOptimizer.{name} = {item!r}" for name, item in vars(trainer.warmup).items()),
        f"ToyRun.tasks = ({' '.join(f'@{scope}/ToyTask(),' for scope in scopes)})",
        *(
            f"{scope}/ToyTask.{name} = {item!r}"
            for scope, task in zip(scopes, run.tasks)
            for name, item in vars(task).items()
        ),
        "ToyRun.shares = {" + ", ".join(f"{key!r}: {item!r}" for key, item in run.shares.items()) + "}",
        f"ToyRun.note = {run.note!r}",
        f"ToyRun.seed = {run.seed}",
    ]
    return "\n".join(lines)


@settings(deadline=None, max_examples=60)
@given(runs)
def test_the_saved_configuration_gives_the_same_run(run: ToyRun) -> None:
    resolved = resolve(gin_text(run))
    assert resolved.run == run
    again = resolve(resolved.config_gin())
    assert again.run == run
    assert again.bindings == resolved.bindings
    assert again.config_gin() == resolved.config_gin()
    assert set(again.origins.values()) & {"default"} == set(), "the text is not complete"
    assert resolve(resolved.config_gin(origins=True)).run == run


GIN = {cls: gin.external_configurable(cls, module="tests") for cls in TOYS.classes.values()}


@settings(deadline=None, max_examples=20)
@given(runs)
def test_gin_itself_builds_the_same_run_from_the_saved_configuration(run: ToyRun) -> None:
    gin.clear_config()
    try:
        gin.parse_config(resolve(gin_text(run)).config_gin())
        assert GIN[ToyRun]() == run
    finally:
        gin.clear_config()


# Differences.


def test_equal_configurations_do_not_differ_however_they_were_stated() -> None:
    one = resolve(BASE + "ToyOptimizer.lr = 0.5\n")
    other = resolve(one.config_gin())
    assert one.differences(other) == []


def test_another_object_is_one_difference_with_all_it_holds() -> None:
    one = resolve(BASE + "ToyRun.seed = 1\n")
    other = resolve(BASE.replace("@ToyClip()", "@ToyTruncate()"))
    loss, seed = one.differences(other)
    assert (loss.path, loss.value, loss.other_value) == (
        "loss",
        "@ToyClip(low=0.2, high=0.2)",
        "@ToyTruncate(limit=5.0)",
    )
    assert (seed.path, seed.value, seed.origin, seed.other_origin) == ("seed", "1", "file.gin:3", "default")


def test_one_field_of_a_shared_object_is_one_difference() -> None:
    other = resolve(BASE, "trainer/warmup/ToyOptimizer.lr = 0.75")
    [difference] = resolve(BASE).differences(other)
    assert (difference.path, difference.value, difference.other_value) == ("trainer.warmup.lr", "0.5", "0.75")


# Mistakes.


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ToyOptimiser.lr = 1.0", "no configurable 'ToyOptimiser'; did you mean 'ToyOptimizer'?"),
        ("ToyOptimizer.lrr = 1.0", "ToyOptimizer has no parameter 'lrr'; did you mean 'lr'?"),
        ("ToyTrainer.lr = 1.0", "ToyTrainer has no parameter 'lr'; it belongs to ToyOptimizer"),
        ("ToyRun.loss = @ToyClipp()", "no configurable 'ToyClipp'; did you mean 'ToyClip'?"),
        ("ToyRun.loss = @ToyClip", "@ToyClip needs parentheses"),
        ("trainr/ToyOptimizer.lr = 1.0", "no scope 'trainr'; did you mean 'trainer'?"),
        ("ToyRun.seed = %sed", "no macro %sed"),
        ("ToyRun.note = hello", "hello is not a value: text needs quotes"),
        ("ToyRun.seed = (1,", "wrong syntax"),
        ("ToyRun.seed 3", "wrong syntax"),
        ("ToyRun.seed = 1 2", "wrong syntax"),
        ("ToyRun.seed = 'abc", "wrong syntax"),
        ("ToyRun.shares = {[]: 1}", "unhashable type: 'list'"),
        ("= 3", "wrong syntax"),
        ("import os", "compose and import in the experiment's Python file"),
        ("include 'other.gin'", "compose and import in the experiment's Python file"),
        ("ToyTrainer.steps = 8", "ToyTrainer.steps is bound already, in file.gin:2"),
        ("x = %y\ny = %x\nToyRun.seed = %x", "is defined by itself"),
    ],
)
def test_wrong_names_and_syntax_are_named_with_their_line(line: str, says: str) -> None:
    message = complaint("ToyTask.weight = 1\nToyTrainer.steps = 7\n" + line)
    assert re.match(r"file\.gin:[345][:,] ", message)
    assert says in message


pieces = st.sampled_from(
    [
        *"=@%()[]{},.:/'\"#-\n\t $\\",
        "    ",
        "ToyRun",
        "seed",
        "ToyOptimizer",
        "lr",
        "import",
        "include",
        "1",
        "1e999",
        "None",
        "é",
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(pieces, max_size=30).map("".join) | st.text(max_size=30))
def test_no_text_ends_in_anything_but_bindings_or_one_line(text: str) -> None:
    said = "file.gin:1: "
    try:
        TOYS.parse(text, lambda line: f"file.gin:{line}")
    except LabError as error:
        said = str(error)
    assert re.match(r"file\.gin:\d+: ", said)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ToyOptimizer.lr = '1e-3'", "ToyOptimizer.lr must be float, not '1e-3'"),
        ("ToyOptimizer.lr = True", "ToyOptimizer.lr must be float, not True"),
        (f"ToyOptimizer.lr = 1{'0' * 400}", "ToyOptimizer.lr must be float, not 1000"),
        ("ToyRun.seed = 1.5", "ToyRun.seed must be int, not 1.5"),
        ("ToyRun.seed = False", "ToyRun.seed must be int, not False"),
        ("ToyTrainer.fused = 1", "ToyTrainer.fused must be bool, not 1"),
        ("ToyRun.note = 3", "ToyRun.note must be str or None, not 3"),
        ("ToyTrainer.dtype = 'bf16'", "must be 'float32' or 'bfloat16', not 'bf16'; did you mean 'bfloat16'?"),
        ("ToyOptimizer.betas = (0.9,)", "must be a tuple (float, float), not (0.9,)"),
        ("ToyOptimizer.betas = 0.9", "must be a tuple (float, float), not 0.9"),
        ("ToyRun.tasks = (@ToyClip(),)", "must be a tuple of @ToyTask(), not (@ToyClip(),)"),
        ("ToyRun.loss = 'clip'", "must be @ToyClip() or @ToyTruncate(), not 'clip'"),
        ("ToyRun.trainer = @ToyClip()", "ToyRun.trainer must be @ToyTrainer(), not @ToyClip()"),
        ("ToyRun.shares = {'a': 'b'}", "must be a dict from str to float, not {'a': 'b'}"),
    ],
)
def test_values_that_do_not_fit_their_field_are_refused(line: str, says: str) -> None:
    text = BASE if "ToyRun.loss" not in line else "ToyTrainer.steps = 7\n\n"
    message = complaint(text + line)
    assert message.startswith("file.gin:3: ")
    assert says in message


def test_an_int_is_a_float_where_one_is_wanted() -> None:
    lr = resolve(BASE + "ToyOptimizer.lr = 2\n").run.trainer.optimizer.lr
    assert (lr, type(lr)) == (2.0, float)


def test_all_missing_values_are_named_at_once() -> None:
    message = complaint("ToyRun.seed = 1\n")
    assert message.startswith("toy.py:1: no value for ")
    assert "ToyRun.loss (@ToyClip() or @ToyTruncate())" in message
    assert "ToyTrainer.steps (int)" in message


def test_a_value_that_an_object_refuses_is_named_with_its_line() -> None:
    assert complaint(BASE + "trainer/warmup/ToyOptimizer.lr = -1.0\n") == (
        "file.gin:3: lr -1.0 must not be negative: raise it (trainer/warmup/ToyOptimizer.lr = -1.0 from file.gin:3)"
    )


def test_values_that_contradict_each_other_are_named_with_their_lines() -> None:
    message = complaint(BASE.replace("7", "1"))
    assert message.startswith("file.gin:2: 2 tasks need more than 1 steps")
    assert "ToyTrainer.steps = 1 from file.gin:2" in message


@pytest.mark.parametrize(
    ("given_set", "says"),
    [
        ("ToyTruncate.limit = 3.0", "this experiment has no ToyTruncate"),
        ("lr = 3.0", "did you mean ToyOptimizer.lr?"),
        ("sed = 3", "did you mean ToyRun.seed?"),
        ("ToyOptimizer.lr = 3.0", "trainer/ToyOptimizer.lr in file.gin:3 decides"),
        ("x = 3.0", "nothing uses %x"),
    ],
)
def test_a_set_without_effect_is_refused(given_set: str, says: str) -> None:
    message = complaint(BASE + "trainer/ToyOptimizer.lr = 1.0\n", given_set)
    assert message == f"--set {given_set} has no effect: {says}"


def test_the_same_set_twice_is_refused() -> None:
    assert "has no effect" in complaint(BASE, "ToyRun.seed = 1", "ToyRun.seed = 2")
