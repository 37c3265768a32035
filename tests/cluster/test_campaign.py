"""The record of a campaign of faults: what was broken off is continued, and never counted as audited."""

from __future__ import annotations

from pathlib import Path

from fault_tables.campaign import Attack, Record


def test_a_campaign_that_was_broken_off_goes_on_with_what_was_audited(tmp_path: Path) -> None:
    file = tmp_path / "record"
    record = Record(file)
    first = Attack(["driver SIGKILL", "trainer SIGSTOP"], "RL")
    record.begin(first)
    first.seconds = 40.0
    record.end(first)
    record.begin(Attack(["gcs SIGKILL"], "starting"))  # and the campaign is killed

    again = Record(file)
    assert (again.faults, len(again.attacks), again.sound()) == (2, 2, True)
    assert "broken off: gcs SIGKILL" in again.summary()
    third = Attack(["verifier SIGTERM"], "RL")
    again.begin(third)
    third.seconds, third.problems = 5.0, ["step 3 stands twice"]
    again.end(third)

    last = Record(file)
    assert (last.faults, len(last.attacks), last.sound()) == (3, 3, False)
    assert "3 faults in 2 attacks; wrong in the books: 1;" in str(last)
    assert "WRONG: step 3 stands twice" in last.summary()
