"""Math grading: the one answer counts, equal is what mathematics calls equal, and no answer stalls it."""

import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.bounded import pool
from tasks.bounded.pool import BoundedPool, Service
from tasks.errors import TaskError
from tasks.math.equality import decide
from tasks.math.extract import extract_answer
from tasks.math.read import MAX_ANSWER, read
from tasks.math.verifier import MathVerifier
from tasks.types import Prompt
from tests.helpers.math_judged import pairs
from tests.helpers.math_pairs import RIGHT, WRONG

DATA = os.environ.get("SCALELAB_DATA")
SLOW = r"\prod_{k=1}^{99999} (k^2+1)"
"""An answer that SymPy computes for longer than any deadline of these tests."""


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    verifier = MathVerifier(workers=1, deadline=1.0)
    yield verifier
    verifier.close()


def grade(verifier: MathVerifier, gold: str, answer: str) -> str:
    return verifier.verify([(Prompt("math/1", "math", "", gold), f"<think>…</think>\\boxed{{{answer}}}")])[0].outcome


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{3}, no, \boxed{4}", "4"),
        (r"The final answer is 5. \boxed{4}", "4"),
        (r"\boxed{\frac{1}{\sqrt{2}}} as above", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{3} then \boxed{4", None),
        (r"\boxed{3} and $\boxed{4}$", "3 or 4"),
        (r"\boxed{3} or 4", "3 or 4"),
        (r"\boxed{}", None),
        ("The final answer is $7$. I hope it is correct.", "$7$"),
        ("**Final answer:** 3.5", "3.5"),
        ("The answer is 3.\nOr so.", "3"),
        ("-12", "-12"),
        ("first\nsecond line\n 42.", "42"),
        ("The answer to 0 - 4 is 4.", "4"),  # the first formula is the problem's, and right whatever follows
        ("After 3 days he has 12 apples.", "12 apples"),
        ("So 3 + 4 gives: $7$", "$7$"),
        ("It takes 2 hours 30 minutes.", "2 hours 30 minutes"),
        ("x = 2 or x = 3", "x = 2 or x = 3"),
        ("5 May 2024", "5 May 2024"),
        ("", None),
        (r"\boxed{" + "1" * (MAX_ANSWER + 1) + "}", None),
        ("1" * (MAX_ANSWER + 1), None),
    ],
)
def test_the_answer_is_the_last_box_else_the_final_answer_else_the_last_line(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("17_9", "17", False),
        ("17_9", "17_{9}", True),
        ("17", "17_{10}", True),
        ("16", "17_9", False),
        (r"\text{A5}_{11}", "A5_{11}", True),
        (r"6.02\times 10^{23}", "6.02e23", True),
        ("6.02e23", "602000000000000000000000", True),
        ("6.02e23", "6.03e23", False),
        ("1,234", "1234", True),
        (r"1,\!657", "1657", True),
        ("(1,234)", "1234", False),
        ("0.5", r"\frac12", True),
        (r"-\frac{1}{2}", "-1/2", True),
        (r"1\frac{3}{4}", "7/4", True),
        (r"\frac13", "0.333333", False),
        (r"\frac13", r"0.\overline{3}", True),
        ("1", r"0.\overline{9}", True),
        ("0", r"0.\overline{3}", False),
        (r"50\%", "0.5", True),
        (r"50\%", "50", True),
        ("50", "0.5", False),
        (r"5\text{ cm}", "5 cm", True),
        (r"5\text{ cm}", r"5\text{ inches}", False),
        ("120^\\circ", "120", True),
        (r"\$1.65", "1.65", True),
        ("5", "5x", None),
        ("5", "x", False),
        (r"\text{Friday}", "friday", True),
        (r"\text{(C)}", "C", True),
        ("0.75", r"\frac{3}{4} \approx 0.7501", True),
        ("5", "５", True),
    ],
)
def test_numbers_and_words_are_decided_by_their_spelling(gold: str, answer: str, equal: bool | None) -> None:
    assert decide(gold, answer) is equal


@given(st.fractions(), st.fractions())
def test_no_two_different_numbers_are_equal_in_any_spelling(one: Fraction, other: Fraction) -> None:
    def spellings(value: Fraction) -> Iterator[str]:
        yield f"{value.numerator}/{value.denominator}"
        yield f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        yield f"${'-' if value < 0 else ''}\\dfrac{{{abs(value.numerator)}}}{{{value.denominator}}}$"

    for first in spellings(one):
        for second in spellings(other):
            assert decide(first, second) is (one == other)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_a_decimal_is_read_as_its_exact_value(value: Decimal) -> None:
    for text in (str(value), f"{value:,}"):
        (reading, *_) = read(f"{text}").readings
        assert decide(f"{Fraction(value)}", text) is True, reading


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("5", "6=5", "failed"),
        ("5", "x=6=5", "failed"),
        ("5", "2+3=5", "passed"),
        ("5", "x=5", "passed"),
        ("x=5", "5", "passed"),
        ("(2,3]", "2<x≤3", "passed"),
        ("(2,3]", "2<x<3", "failed"),
        ("2<x\\le 3", "(2,3]", "passed"),
        (r"\sqrt{2}", "1.414214", "passed"),
        (r"\sqrt{2}", "1.41", "failed"),
        (r"\frac{\pi}{10^7}", "0.0000003", "failed"),
        ("10^{-20}", "10^{-21}", "failed"),
        (r"\{10^{-20},1\}", "1,10^{-21}", "failed"),
        (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2", "passed"),
        (r"\frac{x^2-1}{x-1}", "x+1", "passed"),
        ("x", r"\sqrt{x^2}", "failed"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}", "passed"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "3", "failed"),
        ("-2+3i", "3 i - 2", "passed"),
        ("3i,-3i", "-3 i, 3 i", "passed"),
        (r"e^{i\pi}", "-1", "passed"),
        ("05:00", "06:00", "failed"),
        ("1,2", "2,1", "passed"),
        ("(1,2)", "(2,1)", "failed"),
        ("5", "5, 6", "failed"),
        ("5", r"\sqrt{", "failed"),
        ("5", "9^{9^{9^{9}}}", "failed"),
        ("5", r"\binom{2\cdot 10^7}{10^7}", "failed"),
        ("5", "(10^8)!", "failed"),
        ("5", SLOW, "timeout"),
        ("5", "__import__('os').system('true')", "failed"),
    ],
)
def test_mathematics_decides_the_rest(verifier: MathVerifier, gold: str, answer: str, outcome: str) -> None:
    assert grade(verifier, gold, answer) == outcome


@pytest.mark.slow
def test_answers_are_judged_as_a_person_judges_them(verifier: MathVerifier) -> None:
    def outcomes(pairs: Iterable[tuple[str, str]]) -> list[str]:
        items = [(Prompt("math/1", "math", "", gold), f"</think>So \\boxed{{{answer}}}.") for gold, answer in pairs]
        return [verdict.outcome for verdict in verifier.verify(items)]

    assert len(RIGHT) + len(WRONG) >= 250
    assert [pair for pair, outcome in zip(RIGHT, outcomes(RIGHT)) if outcome != "passed"] == []
    assert [pair for pair, outcome in zip(WRONG, outcomes(WRONG)) if outcome != "failed"] == []


@pytest.mark.slow
def test_judged_answers_of_every_kind_are_judged_alike(verifier: MathVerifier) -> None:
    judged = pairs()
    assert len(judged) >= 450
    items = [(Prompt("math/1", "math", "", gold), f"</think>{text}") for _, gold, text, _ in judged]
    passed = [verdict.outcome == "passed" for verdict in verifier.verify(items)]
    assert [pair for pair, found in zip(judged, passed) if found != pair[3]] == []


@given(st.integers(60, 400), st.integers(-3, 3), st.sampled_from(["2^{{{n}}}{d:+d}", "{n}!{d:+d}"]))
@settings(max_examples=15)
def test_exact_numbers_of_any_size_differ_by_one(verifier: MathVerifier, n: int, off: int, form: str) -> None:
    n = n if "^" in form else n // 4
    value = (2**n if "^" in form else math.factorial(n)) + off
    prompt = Prompt("math/1", "math", "", str(value))
    for other in range(-1, 2):
        answer = form.format(n=n, d=off + other) if off + other else form.format(n=n, d=0)
        (verdict,) = verifier.verify([(prompt, f"</think>\\boxed{{{answer}}}")])
        assert (verdict.outcome == "passed") == (other == 0)


PIECES = [*"\\{}()[]$^_,.:/%0123456789abxyBe \n", "\\frac", "\\boxed{", "\\text{", "\ud800", "\\pm", "a.m.", "May "]
HOSTILE = st.text(st.characters(codec=None, categories=None)) | st.lists(st.sampled_from(PIECES)).map("".join)


@given(HOSTILE, HOSTILE)
def test_extraction_and_spelling_take_any_text(text: str, gold: str) -> None:
    answer = extract_answer(text)
    assert answer is None or 0 < len(answer) <= MAX_ANSWER
    assert decide(gold, answer or text) in (True, False, None)


@pytest.mark.parametrize(
    "unit", ["{", "(", "\\frac", " ", "1,", "\\text{", "0", "[1,", "^\\circ ", "\\color{a}", "a:", "1 "]
)
def test_the_longest_answers_are_decided_in_linear_time(unit: str) -> None:
    answer = (unit * 1000)[:1000]
    start = time.process_time()
    decide(answer, answer[:-1] + "7")
    decide("5", answer)
    assert time.process_time() - start < 1.0


@pytest.mark.slow
def test_a_process_with_many_open_files_can_grade() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    verifier = MathVerifier(workers=1)
    try:
        assert grade(verifier, r"\sqrt{2}", r"2^{1/2}") == "passed"
    finally:
        verifier.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_an_answer_that_many_give_is_read_once_and_judged_for_all(verifier: MathVerifier) -> None:
    given = [("7", "7"), ("1", SLOW), ("7", "8"), ("1", SLOW), ("8", "7"), ("7", "7"), ("1", SLOW), ("7", None)]
    items = [
        (Prompt(f"math/{gold}", "math", "", gold), "no" if answer is None else f"</think>\\boxed{{{answer}}}")
        for gold, answer in given
    ]
    verdicts = verifier.verify(items)
    assert [one.outcome for one in verdicts] == [
        *("passed", "timeout", "failed", "timeout", "failed", "passed", "timeout", "failed")
    ]
    first = {given.index(pair) for pair in given}
    assert [place for place, one in enumerate(verdicts) if one.seconds > 0] == sorted(first)


def test_a_stuck_answer_takes_none_of_its_neighbours_with_it(verifier: MathVerifier) -> None:
    def graded(gold: str, answer: str) -> tuple[Prompt, str]:
        return (Prompt("math/1", "math", "", gold), f"</think>\\boxed{{{answer}}}")

    items = [graded("5", SLOW), graded(r"\pi", r"2\pi/2"), graded("5", "4"), graded("5", r"\sqrt{25}")]
    together: list = [None, None]

    def work(slot: int) -> None:
        together[slot] = [verdict.outcome for verdict in verifier.verify(items)]

    threads = [threading.Thread(target=work, args=(slot,)) for slot in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=900)
    assert together == [["timeout", "passed", "failed", "passed"]] * 2


def children(parent: int) -> list[int]:
    """Processes whose parent is this one."""
    pids = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pids.append(int(entry))
    return pids


@pytest.mark.slow
def test_a_killed_worker_costs_a_retry_and_two_are_an_error_not_a_failure() -> None:
    others = {*children(os.getpid())}  # of tests before this one

    def supervisors() -> list[int]:
        return [pid for pid in children(os.getpid()) if pid not in others and children(pid)]

    def kill_workers() -> None:
        for supervisor in supervisors():
            for child in children(supervisor):
                with suppress(ProcessLookupError):  # it ended by itself meanwhile
                    os.kill(child, signal.SIGKILL)

    with closing(MathVerifier(workers=1, deadline=1.0)) as verifier:
        assert grade(verifier, r"\pi", r"2\pi/2") == "passed"
        (supervisor,) = supervisors()
        kill_workers()
        assert grade(verifier, r"\pi", r"3\pi/3") == "passed"
        assert supervisors() == [supervisor]
        os.kill(supervisor, signal.SIGKILL)
        assert grade(verifier, r"\pi", r"4\pi/4") == "passed"

        stop = threading.Event()

        def murder() -> None:
            while not stop.wait(0.02):
                kill_workers()

        murderer = threading.Thread(target=murder)
        murderer.start()
        try:
            assert grade(verifier, "5", SLOW) == "error"
        finally:
            stop.set()
            murderer.join(timeout=10)


def burn(_: object) -> Callable[[Any], str]:
    """A service: use so many seconds of the processor that the other processes of this test want, too; or sleep."""

    def service(request: Any) -> str:
        if request == "sleep":
            time.sleep(60.0)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        until = time.process_time() + request
        while time.process_time() < until:
            pass
        return "done"

    return service


@pytest.mark.slow
def test_a_worker_that_waits_for_a_processor_is_not_taken_for_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # All that it may be silent for is 0.5 s: with four busy neighbours, 0.25 s of a processor take longer.
    monkeypatch.setattr(pool, "CROWDED", 0.0)
    monkeypatch.setattr(pool, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(pool, "STARVED", 200.0)
    core = min(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile os.getppid() == {os.getpid()}: pass"
    neighbours = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(4)]
    service = Service("burning", f"{__name__}:burn", seconds=5.0, environment=dict(os.environ))
    workers = BoundedPool(service, 1)
    try:
        (busy,) = workers.answer([0.25])
        (asleep,) = workers.answer(["sleep"])
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
        workers.close()
    assert (busy.status, busy.value) == ("done", "done")
    assert busy.seconds > 0.5
    assert asleep.status == "timeout"


@pytest.mark.slow
def test_too_much_memory_is_memory() -> None:
    verifier = MathVerifier(workers=1, deadline=5.0, memory_mb=300)
    assert grade(verifier, "5", r"\prod_{k=1}^{99999} (k^2+x)") in ("memory", "timeout")
    verifier.close()


def test_what_spelling_decides_starts_no_process() -> None:
    verifier = MathVerifier()
    before = children(os.getpid())
    items = [(Prompt("math/1", "math", "", "5"), completion) for completion in ("</think>5", "</think>6", "5")]
    assert [verdict.outcome for verdict in verifier.verify(items)] == ["passed", "failed", "failed"]
    assert children(os.getpid()) == before
    verifier.close()


def test_only_what_follows_the_thinking_is_graded() -> None:
    whole = MathVerifier(whole_if_unclosed=True)
    prompt = Prompt("math/1", "math", "", "5")
    assert whole.verify([(prompt, r"\boxed{5}")])[0].reward == 1.0
    assert whole.verify([(prompt, r"\boxed{5}</think>")])[0].outcome == "failed"
    assert MathVerifier().verify([(prompt, r"\boxed{5}")])[0].outcome == "failed"


@pytest.mark.parametrize("limits", [{"workers": 0}, {"deadline": 0.0}, {"memory_mb": 10}])
def test_impossible_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match="give at least"):
        MathVerifier(**limits)


@pytest.mark.skipif(not DATA, reason="set SCALELAB_DATA to a folder with the data sets to run this")
@pytest.mark.slow
def test_every_answer_of_math_is_itself_in_three_spellings() -> None:
    from tasks.data.loading import load

    golds = [item.gold for item in load("math", DATA)]
    assert len(golds) == 7470
    for gold in golds:
        sized = gold.replace("\\frac", "\\dfrac").replace("(", "\\left( ").replace(")", " \\right)")
        sentence = f"The final answer is ${gold.strip().removesuffix('.')}$. I hope it is correct."
        for text in (f"\\boxed{{{gold}}}", f"\\[\\boxed{{\\,{sized}}}\\]", sentence):
            answer = extract_answer(text)
            assert answer is not None
            assert decide(gold, answer) is True


TOWERS = (
    r"\binom{2\cdot 10^7}{10^7}", "9^{9^{9^{9}}}", "((((7!)!)!)!)!", r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}",
    "(x+y+z+1)^{4000}", r"\int_0^1 x^{x^{x^{x}}} dx", "(" * 900, r"\frac{1}" * 200 + "{2}", "2^" * 300 + "2",
)  # fmt: skip


@pytest.mark.slow
def test_towers_binomials_and_nests_end_by_their_deadline_and_pass_for_nothing(verifier: MathVerifier) -> None:
    items = [(Prompt("math/1", "math", "", r"\frac{\pi}{2}"), f"</think>\\boxed{{{text}}}") for text in TOWERS]
    verdicts = verifier.verify(items)
    assert {verdict.outcome for verdict in verdicts} <= {"failed", "timeout", "memory"}, [
        one.detail for one in verdicts
    ]


SOUP = st.lists(
    st.sampled_from(
        [*"0123456789xyn+-*/^_{}()[]!,.=<> ", "\\frac", "\\sqrt", "\\binom", "^{9", "}", "!", "\\int", "\\sum", "\\log",
         "\\left(", "\\right)", "\\begin{pmatrix}", "\\\\", "&", "\\infty", "\\pi", "\\cdot", "\\text{", "10^"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@pytest.mark.slow
def test_no_soup_of_latex_holds_a_worker_past_its_deadline(verifier: MathVerifier) -> None:
    @given(SOUP, st.sampled_from(["5", r"\frac{\pi}{2}", "(2,3]", "x^2+1"]))
    def one(answer: str, gold: str) -> None:
        verdict = verifier.verify([(Prompt("math/1", "math", "", gold), f"</think>{answer}")])[0]
        assert verdict.outcome != "error", verdict.detail

    one()


@pytest.mark.parametrize(
    "text",
    [
        *("{" * 10**6, "\\boxed{" * 150_000, "1" * 10**6, "answer" * 170_000, "$" * 10**6),
        *("1 ab" + " " * 10**6 + "x", "1 " + "ab 1 " * 200_000),
    ],
    ids=["braces", "boxes", "digits", "answers", "dollars", "spaces", "words"],
)
def test_a_megabyte_is_refused_without_reading_it_twice(text: str) -> None:
    answer = extract_answer(text)
    assert answer is None or len(answer) <= MAX_ANSWER
