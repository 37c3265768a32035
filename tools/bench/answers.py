"""Math answers that pass and should not, or should and do not: per data set and per kind, beside plain Math-Verify.

python tools/bench/graders.py answers --data FOLDER [--judged PAIRS.jsonl] [--write docs/tasks.md]

PAIRS.jsonl holds lines {"gold": …, "completion": …, "right": 1 or 0, "source": …}; the pairs that the tests judge are
measured in any case.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from math_speed import plain_math_verify
from sections import replace_section

from tasks.data.loading import load
from tasks.errors import TaskError
from tasks.math.verifier import MathVerifier
from tasks.types import Prompt

SETS = ("math", "gsm8k_test", "aime_24")
GUESSES = (
    r"1=2",
    "I=0",
    r"\gamma+1",
    r"x \approx 9.37",
    r"\frac10",
    "0",
    "1",
    "x",
    r"\text{yes}",
    r"\emptyset",
    r"(0,1)",
    "n",
)


@dataclass(frozen=True)
class Judged:
    """A gold answer, a completion, and whether it is right."""

    row: str
    gold: str
    completion: str
    right: bool


def displayed(gold: str) -> str:
    """The answer in other LaTeX."""
    return "\\displaystyle " + re.sub(r"\\(?:left|right)(?![a-z])", "", gold.replace("\\frac", "\\dfrac"))


FORMS: dict[str, Callable[[str], str]] = {
    "box": lambda gold: f"So the answer is $\\boxed{{{gold}}}$.",
    "final answer": lambda gold: f"We are done.\n\n**Final Answer:** ${gold}$",
    "answer tag": lambda gold: f"<answer>{gold}</answer>",
    "plain last line": lambda gold: f"The answer is {gold}.",
    "round brackets": lambda gold: f"Thus \\( {gold} \\)",
    "other LaTeX": lambda gold: f"\\[\n\\boxed{{{displayed(gold)}}}\n\\]\nThis completes the solution.",
}
GSM8K_FORMS: dict[str, Callable[[str], str]] = {
    "native A:": lambda gold: f"3 + 4 = 7\nA: {gold}",
    "native ####": lambda gold: f"3 + 4 = 7\n#### {gold}",
}
CHANGES = (
    *((r"\+", "-"), (r"(?<=[^(\[{,=])-", "+"), ("<", ">"), (r"\\le ", "<"), (r"\\sin", r"\\cos"), (r"\\cup", r"\\cap")),
    *((r"\\sqrt", ""), (r"\\pi", "e"), (r"\\infty", "0"), (r"\[", "("), (r"(?<!left)\((?=.*,)", "["), (r"\]", ")")),
    *(
        (r"(?<![a-zA-Z\\])i(?![a-zA-Z])", "1"),
        (r"\bcm\b", "mm"),
        ("feet", "inches"),
        ("hours", "minutes"),
        ("=", r"\\ne "),
    ),
)
"""Patterns and what each is replaced by, once, so that the answer means something else."""


def main(options: argparse.Namespace) -> None:
    """Print the table; with `options.write`, into that file's section too."""
    if options.data is None:
        raise TaskError("answers are measured on data sets: give --data FOLDER, or set SCALELAB_DATA")
    rng = random.Random(9)
    golds = {name: sorted({item.gold for item in load(name, options.data)}) for name in SETS}
    pairs = [*spelled(golds), *negatives(golds, rng), *judged_by_hand(options.judged)]
    rows: dict[str, list[Judged]] = {}
    for pair in pairs:
        rows.setdefault(pair.row, []).append(pair)
    verifier = MathVerifier(options.workers)
    lines = [
        "| pairs | number | wrong passes | wrong refusals | wrong passes of Math-Verify | its refusals |",
        "|---|---|---|---|---|---|",
        *(measured(name, rows[name], verifier, rng, options.sample) for name in rows),
    ]
    verifier.close()
    print("\n".join(lines))
    if options.write:
        replace_section(Path(options.write), "<!-- measured: answers -->", "<!-- end: answers -->", "\n".join(lines))


def spelled(golds: dict[str, list[str]]) -> Iterator[Judged]:
    """Every gold answer as itself, in several spellings."""
    for name, answers in golds.items():
        for gold in answers:
            forms = {**FORMS, **(GSM8K_FORMS if name.startswith("gsm8k") else {})}
            for spell in forms.values():
                yield Judged(f"{name}: itself in {len(forms)} spellings", gold, spell(gold.strip()), True)


def negatives(golds: dict[str, list[str]], rng: random.Random) -> Iterator[Judged]:
    """Gold answers beside others, a changed digit, a turned sign, mutants and guesses."""
    for name, answers in golds.items():
        for gold in answers:
            for row, other in chain(changed(gold, answers, rng), mutants(gold, rng)):
                if unspaced(other) != unspaced(gold):
                    yield Judged(f"{name}: {row}", gold, f"\\boxed{{{other}}}", False)
    everything = sorted(set(chain.from_iterable(golds.values())))
    for gold in rng.sample(everything, min(len(everything), 500)):
        for guess in GUESSES:
            same = gold.endswith(f"= {guess}") or unspaced(gold) in (unspaced(guess), f"x={guess}", f"{guess}^\\circ")
            if not same:
                yield Judged("guesses", gold, f"\\boxed{{{guess}}}", False)


def changed(gold: str, answers: list[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Another problem's answer, one digit more or less, the other sign."""
    row = "another gold, a digit changed, the sign turned"
    yield row, rng.choice(answers)
    digits = [found.start() for found in re.finditer(r"\d", gold)]
    if digits:
        place = rng.choice(digits)
        digit = rng.choice([digit for digit in "123456789" if digit != gold[place]])
        yield row, gold[:place] + digit + gold[place + 1 :]
    if re.fullmatch(r"-?[\w\\{}/^. ]+", gold) and re.search(r"[1-9]", gold) and "text" not in gold:
        yield row, gold.removeprefix("-") if gold.startswith("-") else f"-{gold}"


def mutants(gold: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Up to two changes of an answer with some structure."""
    found = [re.sub(pattern, new, gold, count=1) for pattern, new in CHANGES if re.search(pattern, gold)]
    numbers = list(re.finditer(r"\d+", gold))
    if len(numbers) > 1:
        last = numbers[-1]
        found += [last[0], f"{gold[: last.start()]}{int(last[0]) + 1}{gold[last.end() :]}"]
    for mutant in rng.sample(found, min(2, len(found))):
        if not re.fullmatch(r"\W*\d*\W*", re.sub(re.escape(mutant), "", gold)) or mutant not in gold:
            yield "mutants", mutant


def unspaced(text: str) -> str:
    """A text without what only separates."""
    return re.sub(r"\s|\\left|\\right|\\d?frac|[{}$]", "", text)


def judged_by_hand(more: str | None) -> Iterator[Judged]:
    """The pairs of the tests, and those of a file."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.helpers.math_judged import pairs

    for kind, gold, completion, right in pairs():
        yield Judged(f"judged: {kind}", gold, completion, right)
    if more:
        for line in Path(more).read_text(encoding="utf-8").splitlines():
            pair = json.loads(line)
            if pair["right"] is not None:
                completion = pair["completion"].rpartition("</think>")[2]
                yield Judged("judged: public and probed", pair["gold"], completion, bool(pair["right"]))


def measured(row: str, pairs: list[Judged], verifier: MathVerifier, rng: random.Random, sample: int) -> str:
    """A line of the table; Math-Verify grades a sample, as it is slow."""
    items = [(Prompt("math/0", "math", "", pair.gold), f"</think>{pair.completion}") for pair in pairs]
    passed = [verdict.outcome == "passed" for verdict in verifier.verify(items)]
    for pair, found in zip(pairs, passed):
        if found != pair.right:
            print(f"{row}: {'passes' if found else 'refused'}: {pair.gold!r} <- {pair.completion!r}", file=sys.stderr)
    some = pairs if len(pairs) <= sample else rng.sample(pairs, sample)
    peer = [bool(plain_math_verify((pair.gold, pair.completion))) for pair in some]
    ours, theirs = mistakes(pairs, passed), mistakes(some, peer)
    return f"| {row} | {len(pairs)} | {ours[0]} | {ours[1]} | {theirs[0]} | {theirs[1]} |"


def mistakes(pairs: list[Judged], passed: list[bool]) -> tuple[int, int]:
    """Wrong passes and wrong refusals."""
    wrong = [(pair.right, found) for pair, found in zip(pairs, passed) if pair.right != found]
    return sum(found for _, found in wrong), sum(right for right, _ in wrong)
