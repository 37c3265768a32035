"""Turn statements into a run: choose the binding of each field, check it, and record its origin.

The configuration is a tree of frozen dataclasses, and a field's place in the tree is its gin scope:
`OptimizerConfig.lr` speaks of every optimizer, `trainer/OptimizerConfig.lr` of the trainer's. As in gin, the binding
with the longest matching scope wins, and of several with the same scope the last.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from scalelab.errors import LabError, nearest
from scalelab.experiment.registry import DataclassField, Reference, Registry, Statement
from scalelab.experiment.resolved import DEFAULT, Node, Resolved, Setting, unscoped
from scalelab.experiment.syntax import Macro, Mention, objects_inside, replace_inside
from scalelab.experiment.values import MismatchError, brief, conform, describe

DEEPEST = 32  # levels of objects within objects; what is deeper holds itself


@dataclass(frozen=True)
class Heading:
    """Name and description of a configuration, and the file and line that errors about missing values name."""

    name: str
    description: str
    origin: str


def resolve_statements(
    registry: Registry, heading: Heading, statements: Sequence[Statement], sets: Sequence[Statement] = ()
) -> Resolved:
    """Decide every field of the registry's root, check it, and build the root.

    Args:
        registry: the classes.
        heading: name, description and place of the experiment.
        statements: bindings of fragments and overrides, in order.
        sets: bindings of the command line; they come last, and each must have an effect.

    Raises:
        LabError: a value is missing, does not fit its field, or contradicts another.
    """
    walk = _Walk(registry, statements, sets)
    walk.check_scopes()
    walk.node(registry.root, "", (), None)
    if walk.missing:
        raise LabError(
            f"{heading.origin}: no value for {' and '.join(walk.missing)}; bind it in a fragment or an override"
        )
    for statement in sets:
        if statement not in walk.used:
            raise LabError(f"{statement.origin} has no effect: {walk.why_unused(statement)}")
    modules = dict(registry.imports.files)
    resolved = Resolved(heading.name, heading.description, None, tuple(walk.nodes), walk.unused(), modules)
    return replace(resolved, run=_build(registry, resolved, walk.nodes[0]))


class _Walk:
    """One walk over the tree, from the root down, giving every field its value."""

    def __init__(self, registry: Registry, composed: Sequence[Statement], sets: Sequence[Statement]) -> None:
        self.nodes: list[Node] = []
        self.missing: list[str] = []
        self.used: set[Statement] = set()
        self._registry = registry
        self._sets = sets
        self._since = (
            -1
        )  # the place from which on bindings count: what was bound before an expansion is of another object
        self._statements = statements = (*composed, *sets)
        self._macros = {s.key: s for s in statements if s.cls is None}
        self._bound = {(s.scope, s.cls, s.parameter): s for s in statements if s.cls is not None}

    def check_scopes(self) -> None:
        """Refuse a scope that names neither a field nor what a reference introduced: it is misspelt."""
        known = {name for cls in self._registry.classes.values() for name in self._registry.parameters(cls)}
        references = [one for statement in self._statements for one in objects_inside(statement.value, Reference)]
        known |= {part for one in references for part in one.scope.split("/")}
        for statement in self._statements:
            for part in statement.scope.split("/") if statement.cls and statement.scope else ():
                if part not in known and re.sub(r"_\d+$", "", part) not in known:
                    raise LabError(f"{statement.origin}: there is no scope {part!r}; {nearest(part, sorted(known))}")

    def node(self, cls: type, path: str, scope: tuple[str, ...], base: Any, given: str = DEFAULT) -> Node:
        """Lay out one object and all objects in it.

        Args:
            cls: its class.
            path: where it stands.
            scope: gin scope of its bindings.
            base: an object of the class that gives the defaults; None takes the class's own.
            given: where the object's values come from.
        """
        if path.count(".") > DEEPEST:
            raise LabError(f"{cls.__name__} holds itself without end, through {'.'.join(path.split('.')[:4])}")
        node = Node(cls, self._registry.reference(cls).name, path, scope)
        self.nodes.append(node)
        for name, parameter in self._registry.parameters(cls).items():
            inner_path, inner_scope = f"{path}.{name}" if path else name, (*scope, name)
            value, origin = self._value(node, name, parameter, base, given)
            node.settings[name] = Setting(self._place(value, inner_path, inner_scope, origin), origin)
        return node

    def _value(self, node: Node, name: str, parameter: DataclassField, base: Any, given: str) -> tuple[Any, str]:
        statement = self._find(node, name)
        if statement is not None:
            self.used.add(statement)
            return self._expand(statement.value, statement.origin)
        if base is not None:
            return self._registry.named(getattr(base, name), given), given
        if parameter.default is not None:
            return parameter.default(), DEFAULT
        if self._registry.known(parameter.hint):
            return self._registry.reference(parameter.hint), DEFAULT
        self.missing.append(f"{node.name}.{name} ({describe(parameter.hint)})")
        return None, DEFAULT

    def _find(self, node: Node, name: str) -> Statement | None:
        for length in range(len(node.scope), -1, -1):
            statement = self._bound.get(("/".join(node.scope[:length]), node.cls, name))
            if statement is not None and self._after(statement, self._since):
                return statement
        return None

    def _expand(self, value: Any, origin: str, through: tuple[str, ...] = ()) -> tuple[Any, str]:
        """Replace macros in a value; the origin then names each macro's line, too."""
        if isinstance(value, Macro):
            statement = self._macros.get(value.name)
            if statement is None:
                raise LabError(f"{origin}: there is no macro %{value.name}; {nearest(value.name, self._macros)}")
            if value.name in through:
                raise LabError(f"{origin}: the macro %{value.name} is defined by itself")
            self.used.add(statement)
            return self._expand(statement.value, f"{origin}, {statement.origin}", (*through, value.name))
        if isinstance(value, tuple):
            items = []
            for item in value:
                item, origin = self._expand(item, origin, through)
                items.append(item)
            return tuple(items), origin
        if isinstance(value, dict):
            items, origin = self._expand([*value.values()], origin, through)
            return dict(zip(value, items)), origin
        return value, origin

    def _place(self, value: Any, path: str, scope: tuple[str, ...], origin: str) -> Any:
        """Replace each object in a value by a laid-out node."""
        if isinstance(value, Reference):
            if not value.called:
                return value
            return self._object(value.target, path, tuple(value.scope.split("/")) if value.scope else scope, None)
        if self._registry.known(type(value)):
            return self._object(type(value), path, scope, value, origin)
        if isinstance(value, (tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            placed = {
                key: self._place(item, f"{path}[{key}]", (*scope[:-1], f"{scope[-1]}_{i}"), origin)
                for i, (key, item) in enumerate(items)
            }
            return placed if isinstance(value, dict) else tuple(placed.values())
        return value

    def _object(self, cls: type, path: str, scope: tuple[str, ...], base: Any, given: str = DEFAULT) -> Node:
        """Lay out an object; of a class with a method `expand`, what that puts in its place."""
        node = self.node(cls, path, scope, base, given)
        return self._expanded(node) if hasattr(cls, "expand") else node

    def _expanded(self, node: Node) -> Node:
        """Lay out what an object stands for, such as the model of a folder, with the origin of its values."""
        self.nodes.remove(node)
        stand_in = _build(self._registry, Resolved("", "", None, (node,), ()), node)
        try:
            found = stand_in.expand()
        except LabError as error:
            given = [one.origin for one in node.settings.values() if one.origin != DEFAULT]
            raise LabError(f"{(given or [node.name])[0]}: {error}") from None
        before, self._since = self._since, self._last(node.cls)
        whole = self.node(type(found.value), node.path, node.scope, found.value, found.origin)
        self._since = before
        for (cls, name), value in found.others.items():
            self._follow(node.cls, cls, Statement(cls, self._registry.reference(cls).name, name, value, found.origin))
        return whole

    def _follow(self, stand_in: type, cls: type, statement: Statement) -> None:
        """Take a value that follows from an object, unless another one is bound after that object or by a `--set`."""
        key = ("", cls, statement.parameter)
        bound = self._bound.get(key)
        if bound is not None and self._after(bound, self._last(stand_in)):
            return
        self._bound[key] = statement
        self.used.add(statement)

    def _last(self, cls: type) -> int:
        """Place of the last binding of a class or of an object of it."""
        return max((i for i, one in enumerate(self._statements) if _speaks_of(one, cls)), default=-1)

    def _after(self, statement: Statement, place: int) -> bool:
        """True for a binding after a place, and for every `--set`."""
        return place < 0 or statement in self._sets or self._statements.index(statement) > place

    def _meant(self, statement: Statement) -> str:
        """Hint to the field that `lr = …`, a value without its class, may have meant."""
        keys: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in node.settings:
                keys.setdefault(name, []).append(f"{node.name}.{name}")
        near = difflib.get_close_matches(statement.parameter, keys, n=1, cutoff=0.7)
        if not near:
            return f"nothing uses %{statement.parameter}"
        return f"did you mean {' or '.join(dict.fromkeys(keys[near[0]]))}?"

    def unused(self) -> tuple[Statement, ...]:
        """List bindings without effect; not those that a later one of the same key replaced."""
        return tuple(s for s in (*self._bound.values(), *self._macros.values()) if s not in self.used)

    def why_unused(self, statement: Statement) -> str:
        """Explain why a binding has no effect."""
        if statement.cls is None:
            return self._meant(statement)
        winners = [self._find(node, statement.parameter) for node in self.nodes if node.cls is statement.cls]
        deciding = [winner for winner in winners if winner is not None]
        if deciding:
            return f"{deciding[0].key} in {deciding[0].origin} decides"
        scope = f" in the scope {statement.scope}" if statement.scope else ""
        return f"this experiment has no {statement.name}{scope}"


def _speaks_of(statement: Statement, cls: type) -> bool:
    """True if a binding is of a class, or makes an object of it."""
    made = isinstance(statement.value, cls) or any(
        one.target is cls for one in objects_inside(statement.value, Reference)
    )
    return statement.cls is cls or made


def _build(registry: Registry, resolved: Resolved, node: Node) -> Any:
    """Check every value of an object against its field, objects within it first, and make the object."""
    values = {}
    for name, setting in node.settings.items():
        built = replace_inside(setting.value, Node, lambda inner: _build(registry, resolved, inner))
        built = replace_inside(built, Reference, lambda function: function.target)
        try:
            values[name] = conform(built, registry.parameters(node.cls)[name].hint, unscoped(setting.value))
        except MismatchError as mismatch:
            hint = registry.parameters(node.cls)[name].hint
            there = f"; there are {', '.join(fitting)}" if (fitting := registry.following(hint)) else ""
            raise LabError(f"{setting.origin}: {node.name}.{name} {mismatch}{there}") from None
        if not objects_inside(setting.value, (Node, Mention)):
            node.settings[name] = Setting(values[name], setting.origin)
    try:
        return node.cls(**values)
    except ValidationError as error:  # pydantic wraps what a __post_init__ raises
        first = error.errors()[0]
        raise LabError(_contradiction(node, str(first.get("ctx", {}).get("error", first["msg"])), resolved)) from None
    except (ValueError, TypeError) as error:
        raise LabError(_contradiction(node, str(error), resolved)) from None


def _contradiction(node: Node, message: str, resolved: Resolved) -> str:
    """Extend an object's own error message by the origins of the values that it names."""
    message = message.partition("\n")[0]
    inside = (f"{node.path}.", f"{node.path}[") if node.path else ("",)
    leaves = [
        (key, setting)
        for key, path, setting in resolved.settings()
        if path.startswith(inside) and not isinstance(setting.value, Node)
    ]
    named = [leaf for leaf in leaves if re.search(rf"\b{leaf[0].rpartition('.')[2]}\b", message)]
    given = [leaf for leaf in named or leaves if leaf[1].origin != DEFAULT]
    first = given[0][1].origin if given else resolved.references[node.path].key
    stated = [
        f"{key} = {brief(resolved.text(setting.value))} from {setting.origin}" for key, setting in (named or given)[:4]
    ]
    return f"{first}: {message}" + (f" ({'; '.join(stated)})" if stated else "")
