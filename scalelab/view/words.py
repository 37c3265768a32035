"""Text that a run wrote, made fit for a terminal."""

from __future__ import annotations

import re

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Control characters, line feed and tab apart, and characters that are not seen or turn the direction of others."""


def plain_text(text: object, lines: bool = False) -> str:
    """Text with nothing in it that a terminal would act on: escapes and unseen characters become `⟨001b⟩`.

    Args:
        text: what a run wrote.
        lines: whether line feeds and tabs stay; without, runs of white space become one space.
    """
    shown = UNSEEN.sub(lambda found: f"⟨{ord(found[0]):04x}⟩", str(text))
    return shown if lines else " ".join(shown.split())
