"""The trainer's error for users, and error messages in one line."""

from __future__ import annotations


class MoeError(ValueError):
    """A problem with a model, a layout, weights or a checkpoint, said in one line: the cause and what to do."""


LONGEST = 300
"""Characters of a message that quotes what nobody vouches for."""


def printable(error: BaseException) -> str:
    """An error's message, which may quote untrusted text, as one line of printable characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = "".join(one if one.isprintable() else "?" for one in text)
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, and the next where it ends in a colon; without any, its class's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1]) or type(error).__name__


def kind_and_line(error: BaseException) -> str:
    """The name of an error's class and the first line of its message."""
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"


def require(ok: bool, message: str) -> None:
    """Refuse a value unless a condition holds.

    Raises:
        ValueError: with the message, unless ``ok``.
    """
    if not ok:
        raise ValueError(message)
