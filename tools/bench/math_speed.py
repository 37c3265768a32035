"""Math grading on real answers: throughput beside plain Math-Verify, and whether equal means equal.

python tools/bench/graders.py math --data FOLDER
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from math_verify import parse, verify
from sympy import latex

from tasks.data.loading import load
from tasks.errors import TaskError
from tasks.math.exact import UndefinedError, rational
from tasks.math.nodes import Meaning
from tasks.math.read import read
from tasks.math.verifier import MathVerifier
from tasks.types import Prompt

Pair = tuple[str, str]
"""A gold answer, and a text that answers."""

SPELLINGS: dict[str, Callable[[str], str]] = {
    "in a box, as it stands": lambda gold: f"\\boxed{{{gold}}}",
    "in a sentence": lambda gold: f"So the final answer is ${gold.strip().removesuffix('.')}$. I hope it is correct.",
    "in other LaTeX": lambda gold: (
        "\\[\\boxed{\\," + gold.replace("\\frac", "\\dfrac").replace("(", "\\left( ").replace(")", " \\right)") + "}\\]"
    ),
}


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    if options.data is None:
        raise TaskError("math is measured on MATH train: give --data FOLDER, or set SCALELAB_DATA")
    golds = [item.gold for item in load("math", options.data)]
    verifier = MathVerifier(options.workers)
    passes(verifier, [("\\pi", "\\frac{2\\pi}{2}")] * 8 * options.workers)  # workers up
    lines = [*correctness(verifier, golds, options), "", *throughput(verifier, golds, options)]
    verifier.close()
    print("\n".join(lines))


def passes(verifier: MathVerifier, pairs: list[Pair]) -> list[str]:
    """Outcomes of graded pairs."""
    items = [(Prompt("math/0", "math", "", gold), f"</think>{text}") for gold, text in pairs]
    return [verdict.outcome for verdict in verifier.verify(items)]


def correctness(verifier: MathVerifier, golds: list[str], options: argparse.Namespace) -> list[str]:
    """Share of answers that equal themselves in other spellings, and of different numbers that are told apart."""
    rows = {name: [(gold, spell(gold)) for gold in golds] for name, spell in SPELLINGS.items()}
    rows["as SymPy prints it"] = [(gold, f"\\boxed{{{printed}}}") for gold in golds if (printed := as_sympy(gold))]
    rows["neighbouring numbers of MATH train (must fail)"] = neighbours(golds)
    rng = random.Random(0)
    rows["another problem's answer"] = [(gold, f"\\boxed{{{rng.choice(golds)}}}") for gold in golds]
    lines = [
        f"{len(golds)} gold answers of MATH train, {options.workers} workers "
        f"({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}).",
        "",
        "| answer graded against a gold answer | pairs | outcomes | graded/s |",
        "|---|---|---|---|",
    ]
    for name, pairs in rows.items():
        start = time.perf_counter()
        outcomes = Counter(passes(verifier, pairs))
        rate = len(pairs) / (time.perf_counter() - start)
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        lines.append(f"| {name} | {len(pairs)} | {told} | {rate:.0f} |")
    return lines


def as_sympy(gold: str) -> str | None:
    """The answer in SymPy's spelling, where Math-Verify reads it as a formula."""
    if number(gold) is not None:
        return None
    found = parse(f"${gold}$", fallback_mode="no_fallback")
    return latex(found[0]) if found and hasattr(found[0], "free_symbols") else None


def number(gold: str) -> Fraction | None:
    """The value of an answer that is a rational number without a unit."""
    part: Meaning = read(gold).readings[0]
    try:
        return rational(part)
    except UndefinedError:
        return None


def neighbours(golds: list[str]) -> list[Pair]:
    """Different numbers that stand next to each other in size, or in the alphabet where they are no fractions."""
    values = {value: gold for gold in golds if (value := number(gold)) is not None}
    irrational = sorted({gold for gold in golds if ("\\sqrt" in gold or "\\pi" in gold) and "," not in gold})
    ordered = [values[value] for value in sorted(values)]
    return [(one, f"\\boxed{{{other}}}") for one, other in [*pairwise(ordered), *pairwise(irrational)]]


def throughput(verifier: MathVerifier, golds: list[str], options: argparse.Namespace) -> list[str]:
    """Half right and half wrong answers, one at a time."""
    rng = random.Random(1)
    spell = list(SPELLINGS.values())
    pairs = [
        (gold, rng.choice(spell)(gold if rng.random() < 0.5 else rng.choice(golds)))
        for gold in rng.sample(golds, options.sample)
    ]
    return [
        f"{options.sample} answers, half of them right, one after the other.",
        "",
        "| grader | graded/s | p50 ms | p99 ms | max ms | passed |",
        "|---|---|---|---|---|---|",
        timed("ours", pairs, lambda pair: passes(verifier, [pair]) == ["passed"]),
        timed("plain Math-Verify calls", pairs, plain_math_verify),
    ]


def timed(name: str, pairs: list[Pair], grade: Callable[[Pair], bool]) -> str:
    """A row with rate and latency."""
    seconds, passed = [], 0
    for pair in pairs:
        start = time.perf_counter()
        passed += grade(pair)
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    p50, p99, slowest = (1e3 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99, 1.0))
    return f"| {name} | {len(pairs) / sum(seconds):.0f} | {p50:.2f} | {p99:.1f} | {slowest:.0f} | {passed} |"


def plain_math_verify(pair: Pair) -> bool:
    """Parse both texts and verify them with Math-Verify's own alarms, as most trainers do."""
    gold, text = pair
    return verify(parse(gold if "$" in gold else f"${gold}$"), parse(text))
