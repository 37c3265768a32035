"""The bound on skipped tests."""

from tests.helpers.skips import too_many_skips


def test_what_may_be_skipped_is_bounded_and_everything_else_is_named() -> None:
    assert too_many_skips({}) == []
    assert too_many_skips({"Skipped: SCALELAB_DATA names no folder": 3}) == []
    assert too_many_skips({"Skipped: SCALELAB_DATA names no folder": 30, "set SCALELAB_DATA to a folder": 30}) == [
        "60 tests skipped, 40 may be: set SCALELAB_DATA to a folder"
    ]
    (problem,) = too_many_skips({"Skipped: not on this machine: bubblewrap is not installed": 150})
    assert problem.startswith("150 tests skipped, 0 may be")
    assert "bubblewrap is not installed" in problem
