"""The classes that a configuration may name, and gin's bindings with every name in them checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import Any, get_args, get_type_hints

from scalelab.errors import LabError, nearest
from scalelab.experiment.imports import Imports
from scalelab.experiment.syntax import Binding, Mention, parse, replace_inside
from scalelab.experiment.values import lacking


@dataclass(frozen=True)
class Reference(Mention):
    """A mention of a class, together with the class."""

    target: Any = None
    """The class to make an object of; of a mention without parentheses, the value itself."""


@dataclass(frozen=True, eq=False)
class Statement:
    """One binding, its names checked: `scope/Class.parameter = value`; a macro if `cls` is None."""

    cls: type | None
    name: str
    """The class as configurations call it."""
    parameter: str
    value: Any
    origin: str
    scope: str = ""
    decided_by: str = ""
    """The setting that decides in place of one that is gone (`scalelab.experiment.retired`)."""

    @property
    def key(self) -> str:
        """Text left of the equals sign."""
        owner = f"{self.name}." if self.cls else ""
        return f"{self.scope}/{owner}{self.parameter}" if self.scope else f"{owner}{self.parameter}"


@dataclass(frozen=True)
class DataclassField:
    """One field of a dataclass: the type it is annotated with and a maker of its default, if any."""

    hint: Any
    default: Callable[[], Any] | None


class Registry:
    """The classes that an experiment may configure, by name, and the one that a run is.

    A class is a frozen dataclass. The lab's own go by their name, a user's by `module.Class`; once it has been met, its
    name alone does, too.
    """

    def __init__(self, root: type, others: Iterable[type] = (), retired: Mapping[str, str] | None = None) -> None:
        """Register the classes that go by their name alone.

        Args:
            root: class of the whole run's configuration.
            others: the classes it is made of, and those that can take their place.
            retired: settings of earlier versions (`Class.parameter`), and the one that decides each.
        """
        self.root, self._retired = root, retired or {}
        self.classes: dict[str, type] = {}
        self.imports = Imports(allowed=False)
        self._parameters: dict[type, dict[str, DataclassField]] = {}
        self._names: dict[type, str] = {}
        for cls in (root, *others):
            if cls.__name__ in self.classes:
                raise ValueError(f"two configurable classes are called {cls.__name__}: rename one")
            self._add(cls.__name__, cls)

    def opened(self, imports: Imports) -> Registry:
        """A copy of this registry that also takes classes that it has to import."""
        other = copy(self)
        other.classes, other._parameters, other._names = dict(self.classes), dict(self._parameters), dict(self._names)
        other.imports = imports
        return other

    def rooted(self, root: type) -> Registry:
        """A copy whose root is another class, for configurations that are no run."""
        other = self.opened(self.imports)
        other.root = root
        other._add(root.__name__, root)
        return other

    def parameters(self, cls: type) -> dict[str, DataclassField]:
        """Fields of a class by name, in their order."""
        return self._parameters[cls]

    def known(self, cls: Any) -> bool:
        """True if objects of the class can be configured."""
        return cls in self._names

    def reference(self, cls: type) -> Reference:
        """The reference that makes an object of a known class."""
        return Reference(self._names[cls], target=cls)

    def parse(self, text: str, origin: Callable[[int], str], written: bool = False) -> list[Statement]:
        """Read gin bindings, checking the names in them.

        Args:
            text: gin source.
            origin: what to call a line, given its number.
            written: the text is what a run wrote down, which may hold settings that are gone.

        Raises:
            LabError: wrong syntax or an unknown class, parameter or reference, named with its line and what is nearest.
        """
        bindings = [
            binding
            for binding in parse(text, origin)
            if binding.owner or not self.imports.state(binding.parameter, binding.value)
        ]
        statements: dict[str, Statement] = {}
        for binding in bindings:
            statement = self.statement(binding, written)
            before = statements.setdefault(statement.key, statement)
            if before is not statement:
                raise LabError(f"{binding.origin}: {statement.key} is bound already, in {before.origin}; keep one")
        return [*statements.values()]

    def statement(self, binding: Binding, written: bool = False) -> Statement:
        """A binding with every name in it looked up; of one that is gone, if a run wrote it down, what decides now.

        Raises:
            LabError: there is no such class, or it has no such parameter.
        """
        origin = binding.origin
        value = replace_inside(binding.value, Mention, lambda mention: self._look_up(mention, origin))
        if binding.owner is None:
            return Statement(None, "", binding.parameter, value, origin, binding.scope)
        cls = self._class(binding.owner, origin)
        name, parameters = self._names[cls], self._parameters[cls]
        if not binding.parameter and parameters:
            binding = replace(binding, parameter=next(iter(parameters)))
        decided_by = self._retired.get(f"{name}.{binding.parameter}", "")
        if decided_by and not written:
            raise LabError(f"{origin}: {name}.{binding.parameter} is no setting of its own: bind {decided_by}")
        if binding.parameter not in parameters and not decided_by:
            hint = nearest(binding.parameter, parameters)
            homes = self.homes(binding.parameter)
            if homes and not difflib.get_close_matches(binding.parameter, parameters, n=1):
                hint = f"it belongs to {' and '.join(homes[:3])}"
            raise LabError(f"{origin}: {name} has no parameter {binding.parameter!r}; {hint}")
        return Statement(cls, name, binding.parameter, value, origin, binding.scope, decided_by)

    def homes(self, parameter: str) -> list[str]:
        """Names of the classes that have a parameter of this name."""
        return [name for name, cls in self.classes.items() if parameter in self._parameters[cls]]

    def following(self, hint: Any) -> list[str]:
        """References to the classes that follow a protocol in an annotation; none if there is no protocol in it."""
        protocols = [one for one in _inside(hint) if getattr(one, "_is_protocol", False)]
        return [f"@{name}()" for name, cls in self.classes.items() if any(lacking(cls, one) == [] for one in protocols)]

    def admit(self, cls: type, origin: str) -> Reference:
        """The reference that makes an object of any importable dataclass.

        Raises:
            LabError: it is no frozen dataclass, or other processes could not import it.
        """
        if not self.known(cls):
            name = f"{cls.__module__}.{cls.__qualname__}"
            try:
                importable = self.imports.find(name) is cls
            except LabError:
                importable = False
            if not importable:
                raise LabError(
                    f"{origin}: {cls.__name__} cannot be imported as {name}: define it in a module beside the "
                    "experiment's file, where the processes of a run find it, too"
                )
            self._class(name, origin)
        return self.reference(cls)

    def named(self, value: Any, origin: str) -> Any:
        """A value of an object, with the mention of a function in the function's place.

        Raises:
            LabError: other processes could not import the function.
        """
        if not isinstance(value, FunctionType):
            return value
        return self._look_up(Mention(f"{value.__module__}.{value.__qualname__}", called=False), origin)

    def _look_up(self, mention: Mention, origin: str) -> Reference:
        if mention.called:
            cls = self._class(mention.name, origin)
            return Reference(self._names[cls], mention.scope, target=cls)
        found = self._import(mention.name, origin) if "." in mention.name else None
        if found is None or isinstance(found, type):
            self._class(mention.name, origin)
            raise LabError(f"{origin}: @{mention.key} needs parentheses: @{mention.key}()")
        return Reference(mention.name, mention.scope, called=False, target=found)

    def _class(self, name: str, origin: str) -> type:
        """The class that a configuration calls so, imported if it is none of the lab's."""
        found = self.classes.get(name) or next(
            (cls for full, cls in self.classes.items() if full.endswith(f".{name}")), None
        )
        if found is None and "." in name:
            found = self._import(name, origin)
            if found is not None:
                self._check_class(name, found, origin)
                self._add(name, found)
        if found is None:
            beside = f" (no module {name.rpartition('.')[0]} beside the experiment's file)" if "." in name else ""
            raise LabError(f"{origin}: there is no configurable {name!r}{beside}; {nearest(name, self.classes)}")
        return found

    def _import(self, name: str, origin: str) -> Any:
        try:
            return self.imports.find(name)
        except LabError as error:
            raise type(error)(f"{origin}: {error}") from None

    @staticmethod
    def _check_class(name: str, found: Any, origin: str) -> None:
        if not isinstance(found, type) or not is_dataclass(found) or not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise LabError(f"{origin}: {name} cannot be configured: make it a class under @dataclass(frozen=True)")

    def _add(self, name: str, cls: type) -> None:
        """Take a class, and those that its fields are annotated with."""
        if cls in self._names:
            return
        self.classes[name], self._names[cls] = cls, name
        try:
            hints = get_type_hints(cls, include_extras=True)
        except NameError as error:
            raise LabError(f"{name}: an annotation cannot be read: {error}") from None
        self._parameters[cls] = {
            field.name: DataclassField(hints[field.name], _default(field)) for field in fields(cls) if field.init
        }
        if "." in name:
            for inner in {inner for parameter in self._parameters[cls].values() for inner in _inside(parameter.hint)}:
                if isinstance(inner, type) and is_dataclass(inner):
                    self._add(f"{inner.__module__}.{inner.__qualname__}", inner)


def _inside(hint: Any) -> Iterable[Any]:
    """The types that an annotation is made of."""
    return [inner for part in get_args(hint) for inner in _inside(part)] if get_args(hint) else [hint]


def _default(field: Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    return None if field.default is MISSING else lambda: field.default
