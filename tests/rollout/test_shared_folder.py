"""A folder in shared memory goes with its process: at once if that ends in order, with the next one if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scalelab.rollout.shared_folder import remove_abandoned, shared_folder

HOLD = """
import sys, time
from pathlib import Path
from scalelab.rollout.shared_folder import shared_folder
with shared_folder("test-", Path(sys.argv[1])) as folder:
    (folder / "weights").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(60)
"""


def age(folder: Path) -> None:
    """Let a folder be two minutes old."""
    old = folder.stat().st_mtime - 120
    os.utime(folder, (old, old))


@pytest.mark.timeout(60)
def test_a_killed_processs_folder_is_removed_and_a_live_ones_is_not(tmp_path: Path) -> None:
    with shared_folder("test-", tmp_path) as own:
        assert own.parent == tmp_path
    assert not own.exists()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        age(held)
        remove_abandoned("test-", tmp_path)
        assert (held / "weights").exists(), "its process lives"
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
        assert (held / "weights").exists(), "a killed process removes nothing"
        (tmp_path / "other-folder").mkdir()
        young = tmp_path / "test-young"
        young.mkdir()
        with shared_folder("test-", tmp_path):
            assert not held.exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other-folder", "test-young"]
    finally:
        holder.kill()
        holder.wait(30)
