from __future__ import annotations

from pathlib import Path

import pytest

from scalelab.errors import LabError
from scalelab.experiment import Experiment, Resolved, listing, load, resolve_experiment
from tests.helpers.experiment_toys import TOYS, ToyClip

FRAGMENTS = {
    "recipe/clip": "ToyRun.loss = @ToyClip()\n",
    "recipe/truncate": "ToyRun.loss = @ToyTruncate()\n",
    "scale/small": "ToyTrainer.steps = 7\n",
    "scale/large": "ToyTrainer.steps = 9\n",
    "extra/note": "ToyRun.note = 'noted'\n",
}
HEAD = '"""A toy experiment."""\n\nfrom scalelab.experiment import Experiment\n'
SINGLE = (
    HEAD
    + 'experiment = Experiment(\n    ("recipe/clip", "scale/small"),\n    {\n        "ToyRun.seed": 4,\n    },\n)\n'
)
FAMILY = HEAD + (
    'base = Experiment(("recipe/clip", "scale/small"))\n'
    'experiments = {\n    "plain": base,\n'
    '    "seeded": base.override({"ToyRun.seed": 1}, description="Another seed."),\n'
    '    "large": base.with_fragments("scale/large"),\n}\n'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FRAGMENTS.items():
        file = tmp_path / "fragments" / f"{name}.gin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolve(spec: str, *sets: str) -> Resolved:
    [(name, experiment)] = load(spec).items()
    return resolve_experiment(name, experiment, sets, TOYS)


def complaint(text: str) -> str:
    Path("mine.py").write_text(text)
    with pytest.raises(LabError) as caught:
        resolve("mine.py")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_composes_fragments_and_overrides_and_says_where_each_value_is(folder: Path) -> None:
    (folder / "mine.py").write_text(SINGLE)
    resolved = resolve("mine.py", "ToyTrainer.fused=True")
    assert (resolved.name, resolved.description) == ("mine", "A toy experiment.")
    assert (resolved.run.seed, resolved.run.trainer.steps, resolved.run.trainer.fused) == (4, 7, True)
    assert resolved.origins["ToyRun.seed"] == "override in mine.py:7"
    assert resolved.origins["ToyTrainer.steps"] == "fragments/scale/small.gin:1"
    assert resolved.origins["ToyTrainer.fused"] == "--set ToyTrainer.fused=True"


def test_a_saved_configuration_is_an_experiment_of_the_runs_name(folder: Path) -> None:
    (folder / "mine.py").write_text(SINGLE)
    resolved = resolve("mine.py")
    saved = folder / "runs" / "first" / "config.gin"
    saved.parent.mkdir(parents=True)
    saved.write_text(resolved.config_gin())
    again = resolve("runs/first/config.gin", "ToyRun.note='again'")
    assert (again.name, again.description) == ("first", "A toy experiment.")
    assert [difference.path for difference in again.differences(resolved)] == ["note"]
    assert again.origins["ToyRun.seed"].startswith("runs/first/config.gin:")


def test_families_have_members_that_derive_from_each_other(folder: Path) -> None:
    (folder / "family.py").write_text(FAMILY)
    members = load("family.py")
    assert list(members) == ["family/plain", "family/seeded", "family/large"]
    assert [member.description for member in members.values()] == [
        "A toy experiment.",
        "Another seed.",
        "A toy experiment.",
    ]
    plain, seeded, large = (resolve_experiment(name, member, (), TOYS) for name, member in members.items())
    assert [difference.path for difference in seeded.differences(plain)] == ["seed"]
    assert [difference.path for difference in large.differences(plain)] == ["trainer.steps"]
    assert seeded.origins["ToyRun.seed"] == "override in family.py:7"
    assert resolve("family.py/seeded").run == seeded.run


def test_with_fragments_replaces_those_of_the_same_kind_in_place() -> None:
    base = Experiment(("recipe/clip", "scale/small"), {"ToyRun.seed": 1})
    derived = base.with_fragments("extra/note", "recipe/truncate")
    assert derived.fragments == ("recipe/truncate", "scale/small", "extra/note")
    assert derived.overrides == {"ToyRun.seed": 1}
    assert base.fragments == ("recipe/clip", "scale/small")


def test_a_class_as_an_override_is_an_object_of_it(folder: Path) -> None:
    head = HEAD + "from tests.helpers.experiment_toys import ToyClip\n"
    body = SINGLE.removeprefix(HEAD).replace('"ToyRun.seed": 4', '"ToyRun.loss": ToyClip, "ToyClip.low": 0.1')
    (folder / "mine.py").write_text(head + body.replace("recipe/clip", "recipe/truncate"))
    assert resolve("mine.py").run.loss == ToyClip(low=0.1)


def test_listing_names_all_and_reads_past_what_is_broken(folder: Path) -> None:
    (folder / "family.py").write_text(FAMILY)
    (folder / "single.py").write_text(SINGLE)
    (folder / "broken.py").write_text("experiment = 1 +\n")
    (folder / "_helper.py").write_text("")
    found, broken = listing(folder)
    assert [entry.name for entry in found] == ["family/plain", "family/seeded", "family/large", "single"]
    assert [str(error) for error in broken] == ["broken.py:1: invalid syntax"]


def test_a_fragment_whose_file_does_not_end_in_gin_is_named(folder: Path) -> None:
    (folder / "fragments" / "recipe" / "mine").write_text("")
    assert "fragments/recipe/mine is there, but files of fragments end in .gin: rename it to recipe/mine.gin" in (
        complaint(HEAD + "experiment = Experiment(('recipe/mine',))\n")
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "experiment = Experiment(\n    (\n    'recipe/clp',),\n)",
            "mine.py:6: there is no fragment 'recipe/clp'; did you mean 'recipe/clip'?",
        ),
        (
            "experiment = Experiment(('own/thing',))",
            "sft/…, tasks/…, verdicts/…; one of your own is the file fragments/own/thing.gin",
        ),
        (
            "experiment = Experiment(fragment=('recipe/clip',))",
            "mine.py:4: an Experiment has no 'fragment'; did you mean",
        ),
        (
            "experiment = Experiment(('recipe/clip',), {'ToyRun.loss': lambda: 1})",
            "override in mine.py:4: ToyRun.loss cannot be a lambda, which other processes cannot import; write",
        ),
        ("experiment = Experiment('recipe/clip')", "mine.py:4: fragments must be a tuple of names"),
        ("experiment = Experiment(('recipe/clip',), ['a'])", "mine.py:4: overrides must be a dict"),
        (
            "experiment = Experiment(('recipe/clip',), {\n    'ToyRun.sed': 1})",
            "override in mine.py:5: ToyRun has no parameter 'sed'; did you mean 'seed'?",
        ),
        (
            "experiment = Experiment(('recipe/clip',), {'ToyTrainer.steps': '7'})",
            "override in mine.py:4: ToyTrainer.steps must be int, not '7'",
        ),
        ("experiment = Experiment(('recipe/clip',))", "mine.py:4: no value for ToyTrainer.steps (int)"),
        ("experiment = Experiment(('recipe/clip',), {'ToyRun.': 1})", "'ToyRun.' is not a key; write 'Class.field'"),
        ("experiment = Experiment(('recipe/clip',), {'steps': 1})", "'steps' is not a key; write 'Class.field'"),
        (
            "experiment = Experiment(('recipe/clip',), {'ToyRun.loss': int})",
            "ToyRun.loss cannot be int, which is not configurable",
        ),
        ("experiment = Experiment(('recipe/clip',), {'ToyRun.loss': {1}})", "ToyRun.loss cannot be a set object"),
        ("experiment = 3", "mine.py: define either"),
        *(
            (f"experiments = {{{name!r}: Experiment(('recipe/clip',))}}", "cannot name a run's folder")
            for name in ("../../tmp/x", "a/b", "a..b", ".hidden", "", "a\nb", "x" * 200, 3)
        ),
        ("experiments = {'a': 3}", "mine.py: mine/a is not an Experiment but int"),
        ("x = 1\ny = x / 0", "mine.py:5: ZeroDivisionError: division by zero"),
        (
            "from scalelab.run.evaluation_sets import HeldOut\nHeldOut(prompts=0)",
            "mine.py:5: HeldOut: prompts: Input should be greater than",
        ),
        ("x = (", "mine.py:4: '(' was never closed"),
        ("import nowhere_at_all", "mine.py:4: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_line(folder: Path, body: str, says: str) -> None:
    assert says in complaint(HEAD + body + "\n")


def test_a_file_without_description_is_refused(folder: Path) -> None:
    assert "begin the file with a one-line docstring" in complaint(SINGLE.replace('"""A toy experiment."""', ""))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nothing.py", "there is no file nothing.py"),
        ("nothing/config.gin", "there is no file nothing/config.gin"),
        ("family.py/seded", "family.py has no member 'seded'; did you mean 'seeded'?"),
        ("single.py/seeded", "single.py has no member 'seeded'; it is a single experiment"),
        ("quickstrt", "there is no experiment 'quickstrt'; did you mean 'quickstart'?"),
        ("runs/first", "runs/first is a run's folder: `scalelab run runs/first --resume` goes on with it"),
        ("__init__", "there is no experiment '__init__'; `scalelab list` shows them all"),
    ],
)
def test_unknown_experiments_are_named_with_the_nearest(folder: Path, spec: str, says: str) -> None:
    (folder / "family.py").write_text(FAMILY)
    (folder / "single.py").write_text(SINGLE)
    (folder / "runs" / "first").mkdir(parents=True)
    (folder / "runs" / "first" / "config.gin").write_text("")
    with pytest.raises(LabError, match="^" + says.replace("(", r"\(").replace("?", r"\?")):
        load(spec)


@pytest.mark.parametrize("text", ["ToyRun.seed", "ToyRun.seed=", "seed", "ToyRun.seed=1\nToyRun.note=None"])
def test_a_set_is_one_binding(folder: Path, text: str) -> None:
    (folder / "mine.py").write_text(SINGLE)
    with pytest.raises(LabError, match="--set "):
        resolve("mine.py", text)


def test_a_fragment_that_is_not_text_is_named(folder: Path) -> None:
    (folder / "fragments" / "recipe" / "clip.gin").write_bytes(b"\xff\xfe\x00")
    assert complaint(SINGLE) == "fragments/recipe/clip.gin is not a text file in UTF-8"
