"""Output of commands, data of a page, and what may be set: they stay as somebody has read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.approved import TEXTS, differences, lines, problem, world
from tests.helpers.approved_subjects import SUBJECTS

LONG = ("fit", "compare", "design", "law", "plan", "simulate", "books", "page", "states", "runs", "refused")
"""Subjects that take more than a second."""


@pytest.fixture(scope="module")
def logs() -> Iterator[Path]:
    with world() as folder:
        yield folder


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(
    "subject", [pytest.param(one, marks=pytest.mark.slow if one in LONG else ()) for one in SUBJECTS]
)
def test_what_is_printed_is_what_was_approved(subject: str) -> None:
    found = problem(subject)
    assert not found, found


def test_every_text_has_its_subject() -> None:
    assert {path.stem for path in TEXTS.iterdir()} == set(SUBJECTS)


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ("A  0.613 [0.600, 0.640]  12 steps", True),
        ("A  0.614 [0.600, 0.640]  12 steps", False),
        ("A  0.612 [0.600, 0.640]  13 steps", False),
        ("A  0.612 [0.600, 0.640]  12 hours", False),
        ("A  0.612 [0.600, 0.640]  12 steps\nB", False),
    ],
)
def test_a_last_digit_may_differ_and_nothing_else(found: str, same: bool) -> None:
    assert (differences("A  0.612 [0.600, 0.640]  12 steps", found) == []) is same


def test_a_long_list_is_told_by_its_ends_and_its_sum() -> None:
    told = lines({"x": [float(one) for one in range(20)], "y": [{"z": one} for one in range(4)]})
    assert told.splitlines() == [
        "x: [0.0, 1.0, 2.0 … 17.0, 18.0, 19.0], 20 values of sum 190.0",
        *("y: 4 of them", "y.0.z: 0", "y.1.z: 1", "y.3.z: 3"),
    ]
