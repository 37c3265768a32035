"""Probabilities in words."""

from __future__ import annotations


def percent(chance: float) -> str:
    """A probability in whole percent, `>99%` and `<1%` at the ends: a share of finitely many draws is never certain."""
    return ">99%" if chance > 0.99 else "<1%" if chance < 0.01 else f"{chance:.0%}"
