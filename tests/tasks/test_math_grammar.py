"""The grammar of math answers: it reads all of a text or nothing, an answer is itself, and no mutant of it is."""

import time
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tasks.math.algebra import SymbolicArithmetic
from tasks.math.equality import decide, same_answers
from tasks.math.extract import extract_answer
from tasks.math.read import MAX_ANSWER, read
from tasks.math.units import measure

pytestmark = pytest.mark.slow

ARITHMETIC = SymbolicArithmetic()


def same(gold: str, answer: str) -> bool:
    """Equality as the verifier decides it, in this process."""
    verdict = decide(gold, answer)
    return same_answers(read(gold), read(answer), ARITHMETIC) is True if verdict is None else verdict


WHOLE = st.integers(-99, 999)
DIGITS = st.integers(2, 99)
UNITS = st.sampled_from(["cm", "kg", "m/s", "hours", "dollars", "mL", "kW", "degrees", "square feet", "km/h", "N m"])
LETTER = st.sampled_from("xyzabnt")
OPEN = st.sampled_from("([")


@st.composite
def written(draw: st.DrawFn) -> tuple[str, list[int]]:
    """An answer with slots for numbers: a format, and the numbers in it."""
    kind = draw(st.sampled_from(sorted(FORMS)))
    numbers = draw(st.lists(DIGITS, min_size=4, max_size=4, unique=True).map(sorted))
    return FORMS[kind].replace("UNIT", draw(UNITS)).replace("LETTER", draw(LETTER)), numbers


FORMS = {
    "number": "{0}",
    "decimal": "{0}.{1}7",
    "fraction": r"\frac{{{0}}}{{1009}}",
    "power of ten": r"{0}.5 \times 10^{{{1}}}",
    "root": r"{0}\sqrt{{{1}}}",
    "quantity": r"{0} \text{{ UNIT}}",
    "polynomial": "{0}LETTER^2 - {1}LETTER + {2}",
    "quotient": r"\frac{{LETTER + {0}}}{{{1}LETTER - {2}}}",
    "equation": "p = {0}LETTER - {1}",
    "circle": "(x - {0})^2 + (y + {1})^2 = {2}",
    "inequality": r"{0} < LETTER \le {1}",
    "half line": r"LETTER \ge {0}",
    "interval": "[{0}, {1})",
    "union": r"(-\infty, {0}) \cup [{1}, {2}]",
    "set": r"\{{{0}, {1}, {2}\}}",
    "builder": r"\{{x \mid {0} < x < {1}\}}",
    "tuple": "({1}, {0}, {2})",
    "list": "{0}, {2}, {1}",
    "both signs": r"{0} \pm \sqrt{{{1}}}",
    "named": "a = {0}, b = {1}",
    "matrix": r"\begin{{pmatrix}} {0} & {1} \\ {2} & {3} \end{{pmatrix}}",
    "system": r"\begin{{cases}} x = {0} \\ y = {1} \end{{cases}}",
    "cases": r"\begin{{cases}} {0}x & x > 0 \\ {1} & x \le 0 \end{{cases}}",
    "congruence": r"n \equiv {0} \pmod{{1009}}",
    "family": r"x = \frac{{\pi}}{{{0}}} + {1}k\pi, k \in \mathbb{{Z}}",
    "sequence": r"{0}, {1}, {2}, \ldots",
    "exponential": r"{0}e^{{-{1}t}}",
    "complex": "{0} - {1}i",
    "ratio": "{0}:1009",
    "numeral": "1{0}_{{11}}",
    "time": "7:{0:02d}",
}


def filled(form: str, numbers: list[int]) -> str:
    return form.format(*numbers)


SPELLINGS = (
    lambda text: f"\\boxed{{{text}}}",
    lambda text: f"**Final Answer:** ${text}$",
    lambda text: f"<answer>{text}</answer>",
    lambda text: f"The answer is ${text}$. I hope it is correct.",
    lambda text: f"So \\( {text} \\)",
    lambda text: (
        f"\\[ \\boxed{{\\displaystyle {text.replace('frac', 'dfrac').replace('(', chr(92) + 'left( ')}}} \\]"
        if ")" in text and text.count("(") == text.count(")")
        else f"$\\boxed{{ {text} }}$"
    ),
)


@given(written())
@settings(max_examples=150, deadline=None)
def test_every_answer_is_read_and_is_itself_in_six_spellings(answer: tuple[str, list[int]]) -> None:
    form, numbers = answer
    assume(form != FORMS["time"] or numbers[0] < 60)
    gold = filled(form, numbers)
    assert read(gold).is_readable, gold
    for spell in SPELLINGS:
        found = extract_answer(spell(gold))
        assert found is not None
        assert same(gold, found), (gold, found)


@given(written(), st.integers(0, 3), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_no_answer_with_another_number_passes(answer: tuple[str, list[int]], slot: int, more: int) -> None:
    form, numbers = answer
    other = [*numbers]
    other[slot] += more
    assume(filled(form, numbers) != filled(form, other))
    assume(form not in (FORMS["set"], FORMS["list"]) or sorted(numbers[:3]) != sorted(other[:3]))
    assert not same(filled(form, numbers), filled(form, other))


CHANGES = [
    *(("+", "-"), (" - ", " + "), ("<", ">"), ("<", r"\le "), (r"\le", "<"), (r"\ge", r"\le"), ("[", "("), (")", "]")),
    *((r"\cup", r"\cap"), (r"\pm", "+"), (r"\sqrt", ""), (r"\pi", "e"), (r"\infty", "0"), ("=", r"\ne"), ("-", "")),
    *((r"\equiv", "="), (r"\ldots", "1"), ("i", ""), (r"\mathbb{Z}", r"\mathbb{N}"), ("x", "w"), ("^2", "^3")),
    (",", ";-"),
]  # fmt: skip


@given(written())
@settings(max_examples=120, deadline=None)
def test_no_answer_with_another_sign_bound_or_letter_passes(answer: tuple[str, list[int]]) -> None:
    gold = filled(*answer)
    for old, new in CHANGES:
        # The name of a bound variable does not count, nor does the sign of a parameter that takes every whole number.
        alike = (old == "x" and gold.startswith(r"\{")) or (old == "+" and "k" in gold)
        mutant = gold.replace(old, new, 1)
        assert mutant == gold or alike or not same(gold, mutant), mutant


@given(DIGITS, UNITS, UNITS)
@settings(deadline=None)
def test_no_quantity_passes_in_another_unit(value: int, unit: str, other: str) -> None:
    assume(unit != other)
    assert not same(rf"{value} \text{{ {unit}}}", rf"{value} \text{{ {other}}}")
    assert same(rf"{value} \text{{ {unit}}}", f"{value}")


@given(
    written(),
    written(),
    st.sampled_from([r" \text{ or } ", ", ", r" \lor ", r" \Rightarrow ", r" \text{ not } ", " ? "]),
)
@settings(max_examples=100, deadline=None)
def test_no_second_answer_beside_the_right_one_passes(
    right: tuple[str, list[int]], wrong: tuple[str, list[int]], between: str
) -> None:
    gold, other = filled(*right), filled(*wrong)
    assume(not same(gold, other))
    assert not same(gold, f"{gold}{between}{other}")
    assert not same(gold, f"{other}{between}{gold}")


PIECES = [
    *"0123456789xyzneiCdf+-*/^_{}()[]|!,;:.=<>'&$% ",
    *(r"\frac", r"\sqrt", r"\sum_{k=1}^", r"\int_0^", r"\left(", r"\right)", r"\{", r"\}", r"\\", r"\pm", r"\ldots"),
    *(r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin{cases}", r"\end{cases}", r"\text{", "or", " and ", r"\in"),
    *(r"\mathbb{Z}", r"\infty", r"\cup", r"\le", r"\equiv", r"\mid", r"\log_", r"\sin", r"\mathrm{", r"\overline{"),
    *("cm", "million", " if ", "all", "7:30", "a.m.", "May 5", r"\binom", "_5C_2", r"\$", "(a)", "(B)", "\ud800", "９"),
    *("°", r"\pmod"),
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
)
@example("(" * 400 + "5", "{" * 400)
@example("\\begin{cases}\\end{cases}", "\\begin{aligned}\\end{aligned}")
@settings(max_examples=400, deadline=None)
def test_any_latex_is_read_or_refused_without_an_error(answer: str, gold: str) -> None:
    assert decide(gold, answer) in (True, False, None)
    assert decide("5", answer) in (True, False, None)
    extract_answer(f"The answer is {answer}")


LONG = [
    *(
        "{",
        "(",
        "|",
        "-",
        "x",
        r"\frac",
        r"\sqrt",
        "^",
        "_",
        "f(",
        r"\sum_{k=1}^",
        "1,",
        r"\pm ",
        "!",
        "{x}^",
        "a|",
        "[1,",
    ),
    *(r"\begin{cases}", r"\text{a}", r"\left|", r"\{", r"\sin "),
]


@pytest.mark.parametrize("piece", LONG)
def test_the_longest_answers_are_read_in_little_time(piece: str) -> None:
    text = (piece * MAX_ANSWER)[:MAX_ANSWER]
    start = time.process_time()
    read(text)
    decide("5", text[:-1] + "5")
    assert time.process_time() - start < 2.0


@given(st.sampled_from(["m", "g", "s", "J", "N", "W", "V", "Hz", "Pa", "L"]), st.sampled_from(["k", "M", "m", "c"]))
def test_a_prefix_scales_a_unit_and_keeps_its_dimension(unit: str, prefix: str) -> None:
    def measured(text: str) -> tuple[object, Fraction]:
        found = measure(text)
        assert found is not None, text
        return found

    dimension, size = measured(unit)
    assert measured(prefix + unit)[0] == dimension
    scales = {"k": 1000, "M": 10**6, "m": measured("mm")[1], "c": measured("cm")[1]}
    assert measured(prefix + unit)[1] / size == scales[prefix]
