"""`--set CLASS.FIELD=VALUE`: gin's syntax, and bare words where the declared type says what they are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from scalelab.errors import LabError
from scalelab.experiment.registry import Registry, Statement
from scalelab.experiment.syntax import Binding, Mention
from scalelab.experiment.values import accepts, brief, classes, texts

_KEY = re.compile(r"(?:(?P<scope>[\w/]+)/)?(?P<owner>[\w.]+)\.(?P<parameter>\w+)")
_CLASS = re.compile(r"@?(?:(?P<scope>[\w/]+)/)?(?P<name>[A-Za-z_][\w.]*)(?:\(\))?")


def set_statement(text: str, registry: Registry) -> Statement:
    """Read one `--set`.

    The value is a Python literal or a reference, as in a fragment. What is neither is taken by the field's type: the
    name of a class for an object of it, and any other text for a text: `Recipe.loss=DAPO`, `X.dtype=bfloat16`.

    Raises:
        LabError: it is no binding, or no value of the field.
    """
    origin = f"--set {brief(text)}"
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value or "\n" in text or "\r" in text:
        raise LabError(f"{origin}: write it as CLASS.FIELD=VALUE, such as --set OptimizerConfig.lr=3e-4")
    try:
        statements = registry.parse(f"{key} = {value}", lambda line: origin)
    except LabError as error:
        bare = _bare(key, value, origin, registry)
        if bare is None:
            raise LabError(brief(str(error), 400)) from None
        return bare
    if len(statements) != 1 or _comments(value, statements[0], registry):
        bare = _bare(key, value, origin, registry)
        if bare is None:
            raise LabError(f"{origin}: write one CLASS.FIELD=VALUE, without a comment")
        return bare
    return replace(statements[0], origin=origin)


def _comments(value: str, statement: Statement, registry: Registry) -> bool:
    """True if gin took the end of the value for a comment."""
    before, sharp, _ = value.rpartition("#")
    while sharp:
        try:
            [without] = registry.parse(f"{statement.key} = {before}", str)
        except (LabError, ValueError):
            pass
        else:
            if without.value == statement.value:
                return True
        before, sharp, _ = before.rpartition("#")
    return False


def _bare(key: str, value: str, origin: str, registry: Registry) -> Statement | None:
    """The binding that a value without quotes or parentheses stands for; None if the field's type does not say."""
    place = _KEY.fullmatch(key)
    if place is None:
        return None
    binding = Binding(place["scope"] or "", place["owner"], place["parameter"], None, origin)
    cls = registry.statement(binding).cls
    assert cls is not None, "the key has an owner"
    hint = registry.parameters(cls)[binding.parameter].hint
    meant = _meant(value, hint)
    return None if meant is None else registry.statement(replace(binding, value=meant))


def _meant(value: str, hint: Any) -> Any:
    named = _CLASS.fullmatch(value)
    if named and classes(hint) and value not in texts(hint):
        return Mention(named["name"], named["scope"] or "")
    if accepts(hint, bool) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    plain = value[0] not in "\"'([{%@" and value[-1] not in "\"'"
    return value if plain and (accepts(hint, str) or texts(hint)) else None
