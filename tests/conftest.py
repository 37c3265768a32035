"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.helpers.order import ManyProcessesInTurn, in_good_order
from tests.helpers.skips import too_many_skips
from tests.helpers.slow import all_slow

if TYPE_CHECKING:
    from moe.train.trainer import Trainer

# No time limit per example: on a busy machine it fails tests that are right. The same examples every time, so that a
# change is judged by itself; `HYPOTHESIS_PROFILE=explore` looks for new ones.
settings.register_profile("lab", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "lab"))


# A shell ignores Ctrl-C in what it starts in the background, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # while test files import what they need, which is not looked at later either


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    in_good_order(items, config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ManyProcessesInTurn | None:
    return ManyProcessesInTurn(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector begin its work."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests are all slow unread where no slow test is asked for."""
    if config.getoption("markexpr") == "not slow" and collection_path.suffix == ".py":
        return all_slow(collection_path.read_text(encoding="utf-8")) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin every test with the same numbers of torch, whichever tests of its process came before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


_skipped: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped[str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)] += 1


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a session that skipped more than it may; workers of xdist leave that to the one that collects."""
    if exitstatus == 0 and _problems(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was skipped too often last, where a log that is cut still shows it, also beside tests that failed."""
    for problem in _problems(config):
        terminalreporter.write_line(f"ERROR: {problem}", red=True)


def _problems(config: pytest.Config) -> list[str]:
    if hasattr(config, "workerinput") or os.environ.get("SCALELAB_SKIPS") == "any":
        return []
    return too_many_skips(_skipped)


@pytest.fixture
def make() -> Iterator[Callable[..., Trainer]]:
    """Trainers, one at a time: the one before is closed, and the last at the end."""
    from tests.helpers.moe_models import trainer

    made: list[Trainer] = []

    def one(*args: Any, **kwargs: Any) -> Trainer:
        if made:
            made.pop().close()
        made.append(trainer(*args, **kwargs))
        return made[-1]

    yield one
    if made:
        made[-1].close()
