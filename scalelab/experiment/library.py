"""Find experiments and fragments by name, and read them."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import scalelab
from scalelab.errors import LabError, nearest
from scalelab.experiment.definition import Experiment, Site
from scalelab.experiment.imports import Imports, display_path, import_user_code
from scalelab.experiment.lab import LAB
from scalelab.experiment.overrides import set_statement
from scalelab.experiment.registry import Registry, Statement
from scalelab.experiment.resolve import Heading, resolve_statements
from scalelab.experiment.resolved import Resolved
from scalelab.experiment.syntax import Binding, Mention, read_text
from scalelab.experiment.values import brief
from scalelab.terminal import shell_path

_HOME = Path(scalelab.__file__).resolve().parent
EXPERIMENTS = (_HOME if (_HOME / "experiments").is_dir() else _HOME.parent) / "experiments"
"""The lab's own experiments, and its fragments below them: inside of the package in a wheel, else beside it."""


_MEMBER = re.compile(r"\w[\w.=+-]{0,99}")


@dataclass(frozen=True)
class Listed:
    """One line of `scalelab list`."""

    name: str
    description: str
    file: Path


def listing(folder: Path = EXPERIMENTS) -> tuple[list[Listed], list[LabError]]:
    """All experiments of a folder, members of families one by one, and what kept files from being read."""
    found: list[Listed] = []
    broken: list[LabError] = []
    for file in sorted(folder.glob("*.py")):
        if file.name.startswith("_"):
            continue
        try:
            found += [Listed(name, member.description, file) for name, member in _read(file).items()]
        except LabError as error:
            broken.append(error)
    return found, broken


def load(spec: str) -> dict[str, Experiment]:
    """The experiments that a name, a file or a finished run's `config.gin` stands for, by name.

    Args:
        spec: `quickstart`, a family `leave_one_out`, a member `leave_one_out/fp32_head`, a file `my/idea.py` (or
            `my/family.py/member`), or `runs/NAME/config.gin`.

    Returns:
        One experiment, or all members of a family.

    Raises:
        LabError: there is no such experiment, or its file is wrong.
    """
    if spec.endswith(".gin"):
        return _load_config(Path(spec))
    path = re.fullmatch(r"(.*\.py)(?:/(.+))?", spec)
    if path:
        file, member = Path(path[1]), path[2]
        if not file.is_file():
            raise LabError(f"there is no file {file}; `scalelab list` shows the experiments that have a name")
    else:
        name, _, member = spec.partition("/")
        file = EXPERIMENTS / f"{name}.py"
        if not file.is_file() or name.startswith("_"):
            raise LabError(_unknown_experiment(spec))
    experiments = _read(file)
    if not member:
        return experiments
    if f"{file.stem}/{member}" not in experiments:
        members = [name.partition("/")[2] for name in experiments if "/" in name]
        hint = nearest(member, members) if members else "it is a single experiment"
        raise LabError(f"{display_path(file)} has no member {member!r}; {hint}")
    return {f"{file.stem}/{member}": experiments[f"{file.stem}/{member}"]}


def resolve(spec: str, sets: Sequence[str] = (), imports: bool | None = None) -> Resolved:
    """The complete, checked configuration of one experiment.

    Args:
        spec: as in `load`, but no whole family.
        sets: bindings such as `OptimizerConfig.lr=3e-4` that go over everything else.
        imports: import the modules of the user's own classes; None does so unless the source is a `config.gin`, which
            may come from a stranger.

    Raises:
        LabError: anything is wrong with the experiment, its fragments or the bindings; one line that names the place.
    """
    experiments = load(spec)
    if len(experiments) > 1:
        members = ", ".join(f"{spec}/{name.partition('/')[2]}" for name in experiments)
        raise LabError(f"{spec} is a family; name one of its members: {members}")
    [(name, experiment)] = experiments.items()
    return resolve_experiment(name, experiment, sets, imports=imports)


def resolve_experiment(
    name: str, experiment: Experiment, sets: Sequence[str] = (), registry: Registry = LAB, imports: bool | None = None
) -> Resolved:
    """The complete, checked configuration of an experiment at hand; arguments as in `resolve`."""
    sites = [Path(site.file) for site in experiment.sites.values()]
    allowed = all(file.suffix != ".gin" for file in sites) if imports is None else imports
    # Nothing beside a config.gin is imported: it says itself where its modules lie.
    beside = dict.fromkeys(file.parent for file in sites if file.suffix == ".py")
    registry = registry.opened(Imports([*beside], allowed))
    statements = [
        statement for fragment in experiment.fragments for statement in _fragment(fragment, experiment, registry)
    ]
    values = {
        key: _literal(value, f"override in {experiment.sites[key]}", key, registry)
        for key, value in experiment.overrides.items()
    }
    statements += [_override(key, value, experiment.sites[key], registry) for key, value in values.items()]
    heading = Heading(name, experiment.description, str(experiment.sites[""]))
    return resolve_statements(registry, heading, statements, [set_statement(text, registry) for text in sets])


def _read(file: Path) -> dict[str, Experiment]:
    """Run an experiment file; its experiments by name, each with a description."""
    defined = _run(file)
    where = display_path(file)
    single, family = defined.get("experiment"), defined.get("experiments")
    if isinstance(single, Experiment) and family is None:
        experiments = {file.stem: single}
    elif isinstance(family, Mapping) and family and single is None:
        for name in family:
            if not isinstance(name, str) or not _MEMBER.fullmatch(name) or ".." in name:
                raise LabError(
                    f"{where}: {brief(name)!r} cannot name a run's folder: use letters, digits and _ . - = +"
                )
        experiments = {f"{file.stem}/{name}": member for name, member in family.items()}
        for name, member in experiments.items():
            if not isinstance(member, Experiment):
                raise LabError(f"{where}: {name} is not an Experiment but {type(member).__name__}")
    else:
        raise LabError(f"{where}: define either `experiment = Experiment(…)` or a dict of them, `experiments = {{…}}`")
    docstring = (defined.get("__doc__") or "").strip().partition("\n")[0]
    if not docstring and not all(experiment.description for experiment in experiments.values()):
        raise LabError(f"{where}: there is no description; begin the file with a one-line docstring")
    return {
        name: replace(experiment, description=experiment.description or docstring)
        for name, experiment in experiments.items()
    }


def _run(file: Path) -> dict[str, Any]:
    """Run an experiment's file, with the modules beside it at hand."""
    if EXPERIMENTS not in file.resolve().parents and (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    defined: dict[str, Any] = import_user_code(lambda: runpy.run_path(str(file)), file)
    return defined


def _load_config(file: Path) -> dict[str, Experiment]:
    if not file.is_file():
        raise LabError(f"there is no file {file}; a run's configuration is runs/NAME/config.gin")
    name = file.resolve().parent.name if file.name == "config.gin" else file.stem
    first = read_text(file, display_path(file)).partition("\n")[0]
    description = first.removeprefix("#").partition(":")[2].strip() if first.startswith("#") else ""
    path = str(file.resolve())
    site = Site(path, 1, 1)
    return {name: Experiment((path,), description=description, sites={path: site, "": site})}


def _fragment(name: str, experiment: Experiment, registry: Registry) -> list[Statement]:
    site = experiment.sites[name]
    folders = [Path(site.file).parent / "fragments", EXPERIMENTS / "fragments"]
    candidates = [Path(name)] if name.endswith(".gin") else [folder / f"{name}.gin" for folder in folders]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        known = {
            path.relative_to(folder).with_suffix("").as_posix() for folder in folders for path in folder.rglob("*.gin")
        }
        raise LabError(f"{site}: there is no fragment {name!r}; {_other_fragment(name, folders[0], sorted(known))}")
    shown = display_path(file)
    written = experiment.fragments == (name,) and name.endswith(".gin")  # the configuration of a finished run
    return registry.parse(read_text(file, shown), lambda line: f"{shown}:{line}", written)


def _other_fragment(name: str, folder: Path, known: Sequence[str]) -> str:
    """The end of a message about a fragment that is not there."""
    if (folder / name).is_file():
        return f"{display_path(folder / name)} is there, but files of fragments end in .gin: rename it to {name}.gin"
    kind = [one for one in known if one.startswith(name.partition("/")[0] + "/")]
    kinds = ", ".join(dict.fromkeys(one.partition("/")[0] + "/…" for one in known))
    there = f"there are {', '.join(kind) or kinds}; one of your own is the file {display_path(folder / name)}.gin"
    return nearest(name, known, there)


def _override(key: str, value: Any, site: Site, registry: Registry) -> Statement:
    origin = f"override in {site}"
    scope, _, rest = key.rpartition("/")
    owner, _, parameter = rest.rpartition(".")
    if not owner or not parameter.isidentifier():
        raise LabError(f"{origin}: {key!r} is not a key; write 'Class.field'")
    return registry.statement(Binding(scope, owner, parameter, value, origin))


def _literal(value: Any, origin: str, key: str, registry: Registry) -> Any:
    """A Python value as a statement holds it; a class stands for an object of it, a function or object for itself."""
    if isinstance(value, type):
        if not is_dataclass(value):
            raise LabError(f"{origin}: {key} cannot be {value.__name__}, which is not configurable: no dataclass")
        return Mention(registry.admit(value, origin).name)
    if is_dataclass(value):
        registry.admit(type(value), origin)
        return value
    if isinstance(value, FunctionType):
        if "<" in value.__qualname__:
            what = "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__} inside of another"
            raise LabError(
                f"{origin}: {key} cannot be {what}, which other processes cannot import; write a class or a function "
                "with a name into a file beside the experiment"
            )
        return Mention(f"{value.__module__}.{value.__qualname__}", called=False)
    if isinstance(value, (tuple, list)):
        return tuple(_literal(item, origin, key, registry) for item in value)
    if isinstance(value, dict):
        return {name: _literal(item, origin, key, registry) for name, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise LabError(
        f"{origin}: {key} cannot be a {type(value).__name__} object; give a frozen dataclass, or its class and its "
        f"fields by overrides of their own"
    )


def _unknown_experiment(spec: str) -> str:
    if Path(spec, "config.gin").is_file():
        run = shell_path(spec)
        return (
            f"{spec} is a run's folder: `scalelab run {run} --resume` goes on with it, `scalelab report {run}` shows "
            f"it, and its experiment is {Path(spec, 'config.gin')}"
        )
    names = [listed.name for listed in listing()[0]]
    families = [name.partition("/")[0] for name in names if "/" in name]
    hint = nearest(spec, [*names, *dict.fromkeys(families)], "`scalelab list` shows them all")
    return f"there is no experiment {spec!r}; {hint}"
