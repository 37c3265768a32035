"""Analyses from the user's cache: the same to the bit as without it, whatever became of the cache's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalelab.curves import Curve, Options, analyse, curve
from scalelab.curves.kept import ENTRIES, analyse_kept
from tests.helpers.curve_points import run_points

QUICK = Options(checks=False)


def points(noise: float = 0.006, seed: int = 4) -> Curve:
    compute, rate = run_points(12, noise=noise, seed=seed)
    return curve(compute, rate, np.full(13, 0.006), seed=["a"] * 7 + ["b"] * 6)


def test_a_kept_analysis_is_the_one_that_was_made(tmp_path: Path) -> None:
    item, plain = points(), analyse(points(), QUICK)
    for _ in range(2):  # made, then read
        [found], refused = analyse_kept([item], QUICK, tmp_path)
        assert refused == []
        assert ENTRIES.entry(found) == ENTRIES.entry(plain)
        assert found.as_json() == plain.as_json()
        at = [0.5, 2.0]
        np.testing.assert_array_equal(found.draws().value(at), plain.draws().value(at))
        np.testing.assert_array_equal(found.draws().reached(0.6), plain.draws().reached(0.6))
    assert len(list(tmp_path.glob("*.draws"))) == 1


def test_a_refusal_is_kept_with_its_reason(tmp_path: Path) -> None:
    flat = curve(np.arange(8.0), [0.4] * 8)
    first = analyse_kept([flat], QUICK, tmp_path)
    assert first == analyse_kept([flat], QUICK, tmp_path)
    assert "constant" in first[1][0]["reason"]


@pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
def test_a_damaged_entry_is_computed_and_written_anew(tmp_path: Path, damage: bytes | None) -> None:
    item = points()
    analyse_kept([item], QUICK, tmp_path)
    [path] = tmp_path.glob("*.draws")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + b"12345678\0" if damage is None else damage)
    [found], _ = analyse_kept([item], QUICK, tmp_path)
    assert ENTRIES.entry(found) == whole[: len(whole)] == path.read_bytes()
    assert ENTRIES.value(whole).params == found.params


def test_other_points_names_or_options_have_an_entry_of_their_own(tmp_path: Path) -> None:
    item = points()
    moved = replace(item, pass_rate_N=item.pass_rate_N + np.eye(1, 13, 5)[0] * 1e-12)
    for one, options in (
        (item, QUICK),
        (moved, QUICK),
        (replace(item, run="b"), QUICK),
        (item, replace(QUICK, level=0.9)),
    ):
        analyse_kept([one], options, tmp_path)
    assert len(list(tmp_path.glob("*.draws"))) == 4


def test_places_on_the_axes_of_a_law_move_no_fit_and_are_those_that_are_asked_for(tmp_path: Path) -> None:
    bare = points()
    placed = replace(bare, places={"lr": 1e-4})
    for item in (bare, placed, bare):
        [found], _ = analyse_kept([item], QUICK, tmp_path)
        assert found.fit.curve.places == item.places
        assert ENTRIES.entry(found) == ENTRIES.entry(analyse(item, QUICK))
    assert len(list(tmp_path.glob("*.draws"))) == 1
