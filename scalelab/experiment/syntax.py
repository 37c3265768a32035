"""Read gin text: the one module that imports gin. It looks up no classes, so reading a text runs no code."""

from __future__ import annotations

import hashlib
import re
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gin import config_parser

from scalelab.errors import LabError
from scalelab.experiment.retired import RETIRED
from scalelab.guarded import read_whole

LARGEST_BYTES = 4 * 2**20
"""Size of the largest file that is read as gin; a configuration of the lab has about 10 kB."""

DEEPEST_VALUE = 32
"""Brackets within brackets that a value may have."""


SEED = "Run.seed"
"""The one binding in which two seeds of a recipe differ."""
NO_RECIPE = (SEED, "Budget.hour_price")
"""Bindings that two runs of one recipe may differ in."""


@dataclass(frozen=True)
class Mention:
    """`@scope/Class()` in a text: an object of that class; without parentheses the named thing itself."""

    name: str
    scope: str = ""
    called: bool = True
    arguments: str = ""
    """Text between the parentheses, for readers."""

    @property
    def key(self) -> str:
        """Text left of the point in bindings of the object."""
        return f"{self.scope}/{self.name}" if self.scope else self.name

    def __str__(self) -> str:
        return f"@{self.key}({self.arguments})" if self.called else f"@{self.key}"


@dataclass(frozen=True)
class Macro:
    """`%name` as a value: stands for the value in `name = …`."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Binding:
    """`scope/owner.parameter = value` as written; a macro, `parameter = value`, has no owner.

    `@owner("text")` as a whole value binds the first parameter of the class, which has no name here.
    """

    scope: str
    owner: str | None
    parameter: str
    value: Any
    origin: str


_GIVEN = re.compile(r"""^([\w./]+ *= *@([\w./]+))\( *("[^"\\\n]*"|'[^'\\\n]*') *\)(?= *(?:#.*)?$)""", re.MULTILINE)
"""A line that binds an object made with one text, which gin does not know: `Run.model = @Pretrained("FOLDER")`."""


def parse(text: str, origin: Callable[[int], str]) -> list[Binding]:
    """Read bindings; values are Python literals with `Mention` and `Macro` in them.

    Args:
        text: gin source.
        origin: what to call a line, given its number.

    Raises:
        LabError: wrong syntax, or anything but bindings; one line that names the place.
    """
    bindings = []
    for given in _GIVEN.finditer(text):
        scope, _, owner = given[2].rpartition("/")
        line = text.count("\n", 0, given.start()) + 1
        bindings.append(Binding(scope, owner, "", given[3][1:-1], origin(line)))
    text = _GIVEN.sub(r"\1()", text)
    parser: config_parser.ConfigParser | None = None
    try:
        parser = config_parser.ConfigParser(text, _Delegate())
        for found in parser:
            where = origin(found.location.line_num)
            if isinstance(found, config_parser.BindingStatement):
                owner, parameter = (found.selector, found.arg_name) if found.arg_name else (None, found.selector)
                if _depth(found.value) > DEEPEST_VALUE:
                    raise LabError(f"{where}: brackets within brackets, more than {DEEPEST_VALUE} deep")
                bindings.append(Binding(found.scope, owner, parameter, _tuples_for_lists(found.value), where))
            elif not isinstance(found, config_parser.BlockDeclaration):
                raise LabError(
                    f"{where}: fragments bind values and nothing else; compose and import in the experiment's "
                    "Python file"
                )
    except (SyntaxError, tokenize.TokenError, TypeError, ValueError, RecursionError, MemoryError) as error:
        # CPython 3.11 runs out of stack, and later ones say "too many nested parentheses".
        if isinstance(error, RecursionError | MemoryError) or "too many nested" in str(error):
            raise LabError(f"{origin(1)}: brackets within brackets, more than {DEEPEST_VALUE} deep") from None
        raise LabError(_problem(error, parser, origin)) from None
    return bindings


def read_text(file: Path, shown: str) -> str:
    """The content of a gin file.

    Args:
        file: the file.
        shown: what messages call it.

    Raises:
        LabError: it is no text in UTF-8, or far too large.
    """
    if file.stat().st_size > LARGEST_BYTES:
        raise LabError(f"{shown} is larger than {LARGEST_BYTES // 2**20} MiB: that is no configuration")
    try:
        return read_whole(file, LARGEST_BYTES).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise LabError(f"{shown} is not a text file in UTF-8") from None


def settings_in(text: str, name: str) -> dict[str, Any]:
    """The values in a run's `config.gin` by key, without importing or building anything that it names.

    Values that were never used are left out.

    Args:
        text: its content, whoever wrote it.
        name: what messages call it.

    Returns:
        Numbers, texts, tuples and so on, such as 14336 for `"Recipe.max_tokens"`; of an object the text, `"@CISPO()"`.

    Raises:
        LabError: it cannot be read as gin.
    """
    found: dict[str, Any] = {}
    try:
        for paragraph in text.split("\n\n"):
            found |= _settings(paragraph)
    except LabError:  # a value with an empty line in it, or a mistake, whose line in the whole text is to be named
        found = _by_key(parse(text, lambda line: f"{name}:{line}"))
    return found


@lru_cache(8192)
def _settings(paragraph: str) -> dict[str, Any]:
    """Settings of lines without an empty one between them; the runs of a study share most of them."""
    return _by_key(parse(paragraph, str))


def _by_key(bindings: list[Binding]) -> dict[str, Any]:
    """Values by the keys that `settings_in` gives them."""
    used = [one for one in bindings if one.owner and f"{one.owner}.{one.parameter}" not in RETIRED]
    keys = ["/".join(filter(None, (one.scope, f"{one.owner}.{one.parameter}"))) for one in used]
    return {key: replace_inside(one.value, (Mention, Macro), str) for key, one in zip(keys, used, strict=True)}


def recipe_digest(settings: Mapping[str, Any], begun: Mapping[str, Any] | None = None, fork: Any = None) -> str:
    """Digest of a run's settings without `NO_RECIPE`, the same for all seeds of one recipe; empty without settings.

    A branch that does anything but go on for longer is of another recipe than a run that had its settings throughout.

    Args:
        settings: what `settings_in` gives.
        begun: settings that the trunk of a branch began with; None for a run that is none.
        fork: step from which the branch went on.
    """
    rest = sorted((key, repr(value)) for key, value in settings.items() if key not in NO_RECIPE)
    before = sorted((key, repr(value)) for key, value in (begun or {}).items() if key not in NO_RECIPE)
    if begun and _lasting(before) != _lasting(rest):
        rest += [("fork", repr(fork)), *before]
    return hashlib.sha256(repr(rest).encode()).hexdigest() if rest else ""


def _lasting(settings: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in settings if not key.startswith("Budget.")]


def replace_inside(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of a value with every object of a kind in it, inside tuples and dicts too, replaced."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        return tuple(replace_inside(item, kind, change) for item in value)
    if isinstance(value, dict):
        return {key: replace_inside(item, kind, change) for key, item in value.items()}
    return value


def objects_inside(value: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """The objects of a kind in a value, inside tuples and dicts too."""
    found: list[Any] = []
    replace_inside(value, kind, found.append)
    return found


def _tuples_for_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples_for_lists(item) for key, item in value.items()}
    return tuple(map(_tuples_for_lists, value)) if isinstance(value, (tuple, list)) else value


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else None
    return 0 if items is None else 1 + max(map(_depth, items), default=0)


class _Delegate(config_parser.ParserDelegate):
    """Make `Mention` and `Macro` of references and macros inside values."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Mention:
        scope, _, name = scoped_configurable_name.rpartition("/")
        return Mention(name, scope, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def _problem(
    error: SyntaxError | tokenize.TokenError | TypeError | ValueError,
    parser: config_parser.ConfigParser | None,
    origin: Callable[[int], str],
) -> str:
    """Turn an error of gin, its tokenizer or Python into one line that names the place."""
    message = str(error.args[0])
    line = error.lineno if isinstance(error, SyntaxError) else None
    if isinstance(error, tokenize.TokenError):
        line = error.args[1][0]
    if line is None and parser:  # an error in a value, raised by code that does not have its line
        return f"{origin(parser.current_token.start[0])}: {_first_line(message)}"
    token = re.search(r"Failed to parse token '(.*)'", message)
    if token:
        return f"{origin(line or 1)}: {token[1]} is not a value: text needs quotes, other values are Python literals"
    message = _first_line(message.partition("  Got")[0]).rstrip(".") or "nothing that gin can read"
    return f"{origin(line or 1)}: wrong syntax: {message[0].lower()}{message[1:]}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
