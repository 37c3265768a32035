"""A resolved configuration: the tree of all values with their origins, its text, and its differences to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from scalelab.errors import LabError
from scalelab.experiment.registry import Statement
from scalelab.experiment.syntax import Mention, replace_inside
from scalelab.experiment.values import shown

DEFAULT = "default"
"""Origin of a value that no statement gave."""


@dataclass(frozen=True)
class Setting:
    """One field of the tree: its value, with a `Node` wherever an object stands, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Node:
    """One object of the tree."""

    cls: type
    name: str
    """The class as configurations call it."""
    path: str
    """Path of the object, such as `trainer.optimizer` or `tasks[0]`; "" for the root."""
    scope: tuple[str, ...]
    """The gin scope that its bindings are looked up in."""
    settings: dict[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class SettingDifference:
    """One place where two configurations differ; value and origin are None on a side that has no such place."""

    path: str
    value: str | None
    origin: str | None
    other_value: str | None
    other_origin: str | None


@dataclass(frozen=True)
class Resolved:
    """A complete, checked configuration, and the run it describes."""

    name: str
    """Name of the experiment: a run's folder is called so."""
    description: str
    run: Any
    """The root object, `scalelab.run.config.Run` in the lab."""
    nodes: tuple[Node, ...]
    """The tree, each object before those it holds; the root is first."""
    unused: tuple[Statement, ...]
    """Bindings that reached nothing, such as those of a loss that is not the chosen one."""
    modules: Mapping[str, Path] = field(default_factory=dict)
    """Files of the user's own modules that it names, by the first part of the module's name."""

    @cached_property
    def references(self) -> dict[str, Mention]:
        """gin's name of each object, by path: its class, with a scope only where the class stands in several."""
        scopes: dict[type, set[tuple[str, ...]]] = {}
        for node in self.nodes:
            scopes.setdefault(node.cls, set()).add(node.scope)
        return {
            node.path: Mention(node.name, "/".join(node.scope) if len(scopes[node.cls]) > 1 else "")
            for node in self.nodes
        }

    @property
    def bindings(self) -> dict[str, Any]:
        """Every value by its key, such as `OptimizerConfig.lr`; an object is the text of its reference."""
        return {key: replace_inside(setting.value, Node, self._name) for key, _, setting in self.settings()}

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each of `bindings`: a file and line, a `--set`, or "default"."""
        return {key: setting.origin for key, _, setting in self.settings()}

    def settings(self) -> Iterator[tuple[str, str, Setting]]:
        """Key (`OptimizerConfig.lr`), path (`trainer.optimizer.lr`) and setting of every field."""
        for node in self.nodes:
            for name, setting in node.settings.items():
                path = f"{node.path}.{name}" if node.path else name
                yield f"{self.references[node.path].key}.{name}", path, setting

    def _name(self, node: Node) -> str:
        return str(self.references[node.path])

    def text(self, value: Any) -> str:
        """A setting's value as gin writes it."""
        return shown(replace_inside(value, Node, lambda node: self.references[node.path]))

    def config_gin(self, origins: bool = False) -> str:
        """The complete configuration as gin text, which resolves to an equal run.

        Args:
            origins: end each line with a comment that says where its value comes from.
        """
        sections: dict[str, list[str]] = {}
        text = [
            f"# {self.name}: {self.description}",
            *(f"{name} = {str(file)!r}" for name, file in self.modules.items()),
        ]
        for node in self.nodes:
            key = self.references[node.path].key
            lines = [f"{key}.{name} = {self.text(setting.value)}" for name, setting in node.settings.items()]
            if sections.setdefault(key, lines) != lines:
                raise LabError(f"two objects that differ share the scope of {key}: give their references other scopes")
            if sections[key] is not lines:
                continue
            if origins:
                width = max((len(line) for line in lines if len(line) <= 60), default=0)
                lines = [f"{line:<{width}}  # {s.origin}" for line, s in zip(lines, node.settings.values())]
            text += ["", *([f"# {node.path}"] if node.path else []), *lines]
        return "\n".join(text) + "\n"

    def differences(self, other: Resolved) -> list[SettingDifference]:
        """List where two configurations differ; an object of another class counts once, with all it holds."""
        mine = {path: setting for _, path, setting in self.settings()}
        theirs = {path: setting for _, path, setting in other.settings()}
        found: list[SettingDifference] = []
        for path in dict.fromkeys((*mine, *theirs)):
            a, b = mine.get(path), theirs.get(path)
            within = any(path.startswith((f"{above.path}.", f"{above.path}[")) for above in found)
            if within or (a and b and _classes_in(a.value) == _classes_in(b.value)):
                continue
            found.append(SettingDifference(path, *_side(a), *_side(b)))
        return found


def unscoped(value: Any) -> Any:
    """The value with the plain name of its class in place of every object."""
    return replace_inside(value, Node, lambda node: Mention(node.name))


def _classes_in(value: Any) -> Any:
    return replace_inside(value, Node, lambda node: node.cls)


def _side(setting: Setting | None) -> tuple[str | None, str | None]:
    return (_inline(setting.value), setting.origin) if setting else (None, None)


def _inline(value: Any) -> str:
    """A value on one line, small objects with what they hold."""
    return shown(replace_inside(value, Node, _call))


def _call(node: Node) -> Mention:
    arguments = ", ".join(f"{name}={_inline(setting.value)}" for name, setting in node.settings.items())
    return Mention(node.name, arguments=arguments if len(arguments) <= 80 else "…")
