from __future__ import annotations

import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from scalelab.experiment import listing, load, resolve, resolve_experiment
from scalelab.experiment.lab import LAB
from scalelab.experiment.library import EXPERIMENTS
from scalelab.experiment.values import conform, describe

NAMES = [entry.name for entry in listing()[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_of_the_lab_resolves_and_its_saved_form_gives_the_same_run(name: str, tmp_path: Path) -> None:
    resolved = resolve(name)
    file = tmp_path / "config.gin"
    file.write_text(resolved.config_gin())
    assert resolve(str(file)).run == resolved.run


def test_every_binding_of_the_lab_has_an_effect_somewhere() -> None:
    """A fragment may speak of an alternative, such as the penalty of a recipe that interrupts; not of nothing."""
    useless: dict[str, set[str]] = {}
    for name in NAMES:
        resolved = resolve(name)
        unused = {statement.origin: statement.key for statement in resolved.unused}
        for origin in {*resolved.origins.values(), *unused}:
            useless.setdefault(origin, {unused.get(origin, "")}).intersection_update({unused.get(origin, "")})
    assert {origin: keys for origin, keys in useless.items() if keys not in (set(), {""})} == {}


def test_every_file_of_the_lab_can_be_listed() -> None:
    found, broken = listing()
    assert broken == []
    assert all(entry.description for entry in found)
    assert {entry.file for entry in found} == {file for file in EXPERIMENTS.glob("[!_]*.py")}


def test_defaults_of_configurable_classes_fit_their_own_annotations() -> None:
    for cls in LAB.classes.values():
        for name, parameter in LAB.parameters(cls).items():
            assert describe(parameter.hint), f"{cls.__name__}.{name}"
            if parameter.default is None:
                continue
            default = parameter.default()
            assert not is_dataclass(default) or type(default) in LAB.classes.values(), f"register {type(default)}"
            assert conform(default, parameter.hint) == default, f"{cls.__name__}.{name}"


def test_the_default_recipe_states_all_eight_ingredients() -> None:
    origins = resolve("quickstart").origins
    ingredients = ["loss", "aggregation", "advantage_norm", "fp32_head", "zero_variance", "retire_at", "length_control"]
    for key in [*(f"Recipe.{name}" for name in ingredients), "PipelineRL.k"]:
        assert "recipe/scalerl.gin" in origins[key]


def test_expert_parallel_is_one_binding() -> None:
    ranks = "Cluster.trainers=2"
    [difference] = resolve("quickstart", [ranks, "Layout.expert=2"]).differences(resolve("quickstart", [ranks]))
    assert (difference.path, difference.value) == ("trainer.layout.expert", "2")


def test_the_dense_twin_differs_in_the_model_alone() -> None:
    [(name, experiment)] = load("quickstart").items()
    dense = resolve_experiment(name, experiment.with_fragments("model/dense_miniature"))
    [difference] = dense.differences(resolve("quickstart"))
    assert difference.path == "model"


def test_checking_an_experiment_needs_no_more_than_gin_and_pydantic() -> None:
    code = (
        "import sys; from scalelab.experiment import listing, resolve; listing(); resolve('quickstart');"
        "folders = {name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()};"
        "print(*sorted({name.partition('.')[0] for name, file in folders.items() if 'site-packages' in file}))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    packages = {name for name in child.stdout.split() if not name.startswith("_")}
    pydantic = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
    assert packages == {"gin", *pydantic}, child.stderr


def test_gin_is_imported_in_one_module() -> None:
    package = Path(EXPERIMENTS.parent)
    importers = [
        file.relative_to(package).as_posix()
        for folder in ("scalelab", "moe", "tasks", "experiments")
        for file in (package / folder).rglob("*.py")
        if any(line.startswith(("import gin", "from gin")) for line in file.read_text().splitlines())
    ]
    assert importers == ["scalelab/experiment/syntax.py"]
