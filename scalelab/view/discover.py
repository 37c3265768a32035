"""Find the runs of the sources that a user names, and which of them are seeds of one recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scalelab.errors import LabError
from scalelab.experiment import recipe_digest, settings_in
from scalelab.guarded import read_text
from scalelab.reading.run_folder import fork_of, shown_manifest
from scalelab.reading.sources import SEED_FOLDER, distinct_names, is_run, run_folders

MOST_RUNS = 2000
"""Run folders that are shown; a source with more is refused."""


@dataclass(frozen=True)
class RunSource:
    """One run: a folder, or a table of points that somebody else's trainer wrote.

    Attributes:
        id: its name in addresses; says nothing of the disk.
        path: the folder or file.
        group: name of the recipe, which its seeds share.
        name: how people call it: the group, and the seed where the group has several.
        folder: whether it is a run folder, which has metrics and completions besides points.
    """

    id: str
    path: Path
    group: str
    name: str
    folder: bool


def find_runs(sources: Sequence[Path]) -> list[RunSource]:
    """The runs of some sources, in order, seeds beside each other.

    A source is a run folder, a folder of those (up to three deep), or a table. Folders that hold a manifest but no
    evaluation yet are runs, too. Runs are seeds of one recipe if their folders are called `seed_N` and share a parent,
    or if their settings differ in seeds alone.

    Raises:
        LabError: a source is not there, or holds too many runs.
    """
    paths: list[Path] = []
    for source in sources:
        if not source.exists():
            raise LabError(f"{source}: no such file or folder")
        paths += run_folders(source) or [source]
    paths = list(dict.fromkeys(paths))
    if len(paths) > MOST_RUNS:
        raise LabError(f"{len(paths)} runs in these sources; at most {MOST_RUNS} are shown: name fewer")
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(_recipe(path), []).append(path)
    names = distinct_names([_group_path(group[0]) for group in groups.values()])
    members = [(name, path) for name, group in zip(names, groups.values()) for path in group]
    return [
        RunSource(f"r{index}", path, name, _name(name, path, len(groups[_recipe(path)])), is_run(path))
        for index, (name, path) in enumerate(members)
    ]


def _recipe(path: Path) -> str:
    """A key that the seeds of one recipe share."""
    if SEED_FOLDER.fullmatch(path.resolve().name):
        return f"folder {path.resolve().parent}"
    try:
        settings = _settings_of(path) if path.is_dir() else ""
    except LabError:
        settings = ""  # the run itself reports that
    return f"settings {settings}" if settings else f"path {path.resolve()}"


def _settings_of(path: Path) -> str:
    start = read_text(path, "start.gin")
    fork = fork_of(shown_manifest(path)) if start else None
    return _but_for_seeds(read_text(path, "config.gin"), start, str(fork))


@lru_cache(MOST_RUNS)
def _but_for_seeds(config: str, start: str, fork: str) -> str:
    return recipe_digest(settings_in(config, "config.gin"), settings_in(start, "start.gin"), fork)


def _group_path(path: Path) -> Path:
    """The folder or file that a recipe is named after."""
    home = path.resolve()
    return home.parent if SEED_FOLDER.fullmatch(home.name) else home


def _name(group: str, path: Path, seeds: int) -> str:
    return f"{group} · {path.resolve().name}" if seeds > 1 else group
