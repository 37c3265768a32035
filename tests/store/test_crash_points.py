"""A run that dies before any write, sync, rename or deletion goes on, and nothing is lost, doubled or half."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

import pytest

from scalelab.experiment import Resolved
from scalelab.store.audit import audit
from scalelab.store.lines import read_lines
from tests.helpers.crash_points import ENDINGS, crash, every_crash, in_process
from tests.helpers.crash_world import live, settings

pytestmark = pytest.mark.slow

SHARES = 4
"""Processes that share the crashes of one run."""


def is_whole(path: Path, what: str, resolved: Resolved) -> None:
    """Resume a run until it ends, and look at everything that it left."""
    live(path, resolved)
    found = audit(path)
    # TensorBoard reads its files in the order of the second they were begun in; these lives are shorter than one.
    problems = [problem for problem in found.problems if not problem.startswith("TensorBoard")]
    assert problems == [], (what, problems)
    assert found.status == "finished", what
    assert found.steps == resolved.run.budget.steps, what
    measured = {line["step"] for line in read_lines(path / "evals.jsonl")}
    assert {0, found.steps} <= measured, (what, measured)
    left = [name for name in path.rglob("*") if name.name.endswith((".partial", ".writing", ".old"))]
    assert [one for one in left if "checkpoints" in one.parts and one.is_dir()] == [], (what, left)


def crash_once(share: int) -> int:
    """Crash a run at every event, this process's share of them, and go on with it."""
    resolved = settings()
    work = lambda root: live(root / "run", resolved)  # noqa: E731
    return every_crash(work, lambda root, what: is_whole(root / "run", what, resolved), share=(share, SHARES))


def crash_twice(share: int) -> int:
    """Crash a run at every eighth event, and what resumes it, too; go on with it then."""
    resolved, draws = settings(), Random(share)
    work = lambda root: live(root / "run", resolved)  # noqa: E731

    def again(root: Path, what: str) -> None:
        second, ending = draws.randrange(1, 60), draws.choice(ENDINGS)
        beside = root.parent / "again"
        beside.mkdir()
        crash(root, lambda: work(root), second, ending, beside)
        is_whole(root / "run", f"{what}, then {ending} at event {second}", resolved)

    return every_crash(work, again, endings=(ENDINGS[share % len(ENDINGS)],), share=(share, 2 * SHARES))


@pytest.mark.parametrize("share", [0, *(pytest.param(one, marks=pytest.mark.nightly) for one in range(1, SHARES))])
@pytest.mark.parametrize(
    ("times", "least"), [("crash_once", 20), pytest.param("crash_twice", 5, marks=pytest.mark.nightly)]
)
def test_a_run_survives_a_crash_before_any_event(times: str, least: int, share: int) -> None:
    done = in_process(__file__, times, str(share), seconds=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > least


def warm() -> None:
    """Import now what children would import each for themselves."""
    with tempfile.TemporaryDirectory() as folder:
        live(Path(folder) / "run", settings())
        audit(Path(folder) / "run")


if __name__ == "__main__":
    warm()
    print({"crash_once": crash_once, "crash_twice": crash_twice}[sys.argv[1]](int(sys.argv[2])))
