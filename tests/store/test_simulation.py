"""Whole runs under simulated faults lose nothing and end; bugs that are planted are found by the seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.crash_points import in_process
from tests.helpers.planted_bugs import PLANTED, first_seed
from tests.helpers.simulated_faults import FAULTS, parsed, plan
from tests.helpers.simulated_run import run_seed

SHARES, SEEDS = 4, 1000
"""Processes that share the seeds."""

SHOWN_BY = {
    "lines are not synced": 8,
    "the folder is not synced after a rename": 14,
    "a file is renamed before its content is synced": 8,
    "the lease is not looked at": 16,
    "ranks name their checkpoints themselves": 0,
    "a cancellation is swallowed": 2,
    "undone steps are not noted": 1,
    "completions are pruned by the files that are there": 567,
    "a completion is taken twice": 0,
    "the parent writes no ending": 4,
    "a torn last line is kept": 19,
    "files of a run that goes on are not written again": 1,
    "compute is undone with its steps": 38,
    "the journal is written before what follows from it": 16,
    "an engine is waited for without end": 15,
    "the name of a run's folder is not synced": 101,
    "rollouts that a checkpoint under way names are deleted": 2,
    "rollouts of the process that has taken the run over are deleted": 1877,
}
"""A seed that shows each planted bug; `python -m tests.helpers.planted_bugs` looks for the first."""


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, *(pytest.param(one, marks=pytest.mark.nightly) for one in range(1, SHARES))])
def test_a_thousand_seeds_lose_nothing_and_end(share: int) -> None:
    each = SEEDS // SHARES
    script = str(Path(__file__).parents[1] / "helpers" / "simulated_run.py")
    done = in_process(script, "--seeds", str(each), "--start", str(share * each), seconds=3000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = dict(re.findall(r"'([\w/ -]+)': (\d+)", done.stdout.splitlines()[-1]))
    assert set(made) == set(FAULTS)
    assert all(int(count) > 0 for count in made.values()), f"some kind of fault was never made: {made}"


@pytest.mark.slow
def test_good_runs_raise_no_alarm() -> None:
    script = str(Path(__file__).parents[1] / "helpers" / "simulated_run.py")
    done = in_process(script, "--good", "--seeds", "20", seconds=3000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "moments"),
    [
        # between giving a folder or a checkpoint its name and putting that name on the disk
        ("ended by Ray@{};power cut@65", (*range(1, 7), *range(78, 92))),
        # between the journal's line of the run's end and the process's own
        ("killed@{}", range(174, 186)),
        # while it removes what one that died before its manifest has left
        ("ended by Ray@{};killed@9", range(14, 22)),
        pytest.param("ended by Ray@{};power cut@65", range(1, 140), marks=pytest.mark.nightly),
        pytest.param("killed@{}", range(1, 195), marks=pytest.mark.nightly),
    ],
    ids=lambda what: what if isinstance(what, str) else str(len(what)),
)
def test_nothing_is_lost_whenever_a_process_dies(faults: str, moments: Sequence[int]) -> None:
    for at in moments:
        assert run_seed(7, parsed(faults.format(at)))[0] is None, faults.format(at)


@pytest.mark.parametrize("seed", [3, 5])
def test_a_seed_is_the_same_each_time(seed: int) -> None:
    assert run_seed(seed) == run_seed(seed)


def test_other_seeds_are_other_lives() -> None:
    assert plan(7) == plan(7) != plan(8)


def test_a_line_that_replays_a_seed_is_read_as_it_was_written() -> None:
    told = ";".join("+".join(f"{fault.kind}@{fault.at}" for fault in faults) for faults in plan(11))
    assert parsed(told) == plan(11)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    seed = SHOWN_BY[bug]
    assert run_seed(seed)[0] is None
    assert first_seed(bug, [seed]) is not None, f"seed {seed} does not show it; planted_bugs finds one that does"
