"""`Experiment`: the gin fragments that an experiment file names, and values that override theirs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.experiment.imports import display_path


@dataclass(frozen=True)
class Site:
    """A place in a Python file."""

    file: str
    line: int
    last_line: int

    def __str__(self) -> str:
        return f"{display_path(self.file)}:{self.line}"

    def of(self, text: str) -> Site:
        """The line within this place that holds a quoted text; the whole place if none does."""
        try:
            lines = Path(self.file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return self
        for number in range(self.line, min(self.last_line, len(lines)) + 1):
            if f'"{text}"' in lines[number - 1] or f"'{text}'" in lines[number - 1]:
                return Site(self.file, number, number)
        return self


@dataclass(frozen=True)
class Experiment:
    """A composition of fragments, with overrides on top; nothing is read or built until it is resolved.

    Raises:
        LabError: fragments or overrides are of the wrong kind.
    """

    fragments: tuple[str, ...]
    """Names such as `"recipe/scalerl"` for `fragments/recipe/scalerl.gin`, beside the experiment's file or in the lab's
    own folder; later ones go over earlier ones."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values by `"Class.field"`, over all fragments; for an object, its class: `{"Recipe.loss": DAPO}`."""
    description: str = ""
    """One line; the first line of the file's docstring where it is empty."""
    sites: Mapping[str, Site] = field(default_factory=dict, repr=False, compare=False)
    """Lines that state each fragment and override, and under "" the experiment itself; found at construction."""

    def __post_init__(self) -> None:
        site = _caller()
        if not isinstance(self.fragments, tuple) or not all(isinstance(name, str) for name in self.fragments):
            raise LabError(f"{site}: fragments must be a tuple of names, such as ('model/scout_miniature',)")
        if not isinstance(self.overrides, Mapping) or not all(isinstance(key, str) for key in self.overrides):
            raise LabError(f"{site}: overrides must be a dict, such as {{'OptimizerConfig.lr': 3e-4}}")
        stated = {name: self.sites.get(name) or site.of(name) for name in (*self.fragments, *self.overrides)}
        object.__setattr__(self, "sites", {**stated, "": self.sites.get("") or site})

    def override(self, overrides: Mapping[str, Any], description: str = "") -> Experiment:
        """Add values that override the experiment's own; returns a new experiment.

        Args:
            overrides: values by `"Class.field"`.
            description: one line; "" keeps this experiment's.
        """
        return self._derive(self.fragments, {**self.overrides, **overrides}, overrides, description)

    def with_fragments(self, *fragments: str, description: str = "") -> Experiment:
        """Exchange fragments for others of the same kind, the part of their name before the first "/".

        Args:
            fragments: names; one of a kind that the experiment does not have yet comes last.
            description: one line; "" keeps this experiment's.
        """
        kinds = {_kind(name) for name in fragments}
        composed: list[str] = []
        for name in self.fragments:
            instead = [new for new in fragments if _kind(new) == _kind(name)] if _kind(name) in kinds else [name]
            composed += [new for new in instead if new not in composed]
        composed += [new for new in fragments if new not in composed]
        return self._derive(tuple(composed), self.overrides, fragments, description)

    def _derive(
        self, fragments: tuple[str, ...], overrides: Mapping[str, Any], new: Iterable[str], description: str
    ) -> Experiment:
        sites = {name: site for name, site in self.sites.items() if name not in ("", *new)}
        return Experiment(fragments, overrides, description or self.description, sites)


def _kind(fragment: str) -> str:
    return fragment.partition("/")[0]


def _caller() -> Site:
    """The statement outside this module that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    at = inspect.getframeinfo(frame, context=0).positions
    line = (at and at.lineno) or frame.f_lineno
    return Site(frame.f_code.co_filename, line, (at and at.end_lineno) or line)
