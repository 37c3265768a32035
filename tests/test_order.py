"""Workers of pytest-xdist get whole files, one of them all files of many processes, in an order that wastes no time."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import os
from pathlib import Path
import pytest
from tests.helpers import order

def pytest_collection_modifyitems(config, items):
    order.in_good_order(items, config.rootpath)

def pytest_xdist_make_scheduler(config, log):
    return order.ManyProcessesInTurn(config, log)

@pytest.fixture(autouse=True)
def told(request):
    with open(request.config.rootpath / "told", "a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {request.path.stem}\\n")
"""
SLOW = "import pytest, time\n@pytest.mark.slow\ndef test_slow(): time.sleep(0.3)\n"
FILES = {
    "tests/aaa/test_short.py": "def test_short(): pass\n",
    "tests/cluster/test_actors.py": SLOW,
    "tests/cluster/test_helper.py": "def test_one(): pass\ndef test_two(): pass\n",
    "tests/tasks/test_tasks.py": SLOW,
    "tests/transfer/test_sent.py": SLOW,
    "tests/virtual/test_virtual.py": SLOW,
    "tests/watch/test_watch.py": SLOW,
}


def test_one_worker_gets_what_has_many_processes_and_short_files_come_last(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\ntestpaths = tests\n")

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        settings = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300, check=True
        )
        return done.stdout

    listed = run("--collect-only")
    files = [line.partition("::")[0].rpartition("/")[2] for line in listed.splitlines() if "::" in line]
    expected = ["actors", "sent", "helper", "helper", "virtual", "tasks", "watch", "short"]
    assert files == [f"test_{name}.py" for name in expected]
    run("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
    told = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert len(told) == 8
    assert len({worker for worker, name in told if name in ("test_actors", "test_sent", "test_helper")}) == 1
    assert len({worker for worker, _ in told}) > 1
