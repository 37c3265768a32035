"""Durable files are old or new after a crash at any point, and a finished write stays."""

import os
import sys
from io import FileIO
from pathlib import Path

import pytest

from moe.durable import append, put_in_place, remove_tree, sync, write_whole
from tests.helpers.crash_points import every_crash, in_process


def said(path: Path, word: str) -> None:
    """Tell the check, outside of the folder that crashes, what has returned."""
    with open(path.parent / "said", "a") as file:
        file.write(word + "\n")


def heard(path: Path) -> list[str]:
    file = path.parent / "said"
    return file.read_text().split() if file.exists() else []


def replace_a_file(root: Path) -> None:
    write_whole(root / "file", b"old" * 1000)
    said(root, "old")
    write_whole(root / "file", b"new" * 2000)
    said(root, "new")


def is_old_or_new(root: Path, what: str) -> None:
    content = (root / "file").read_bytes() if (root / "file").exists() else None
    last = ([None, *heard(root)])[-1]
    allowed = {None: (None, b"old" * 1000), "old": (b"old" * 1000, b"new" * 2000), "new": (b"new" * 2000,)}
    assert content in allowed[last], (what, last, content and content[:9])


def add_lines(root: Path) -> None:
    with FileIO(root / "lines", "a") as file:
        sync(root)
        for number in range(4):
            append(file, b"%d\n" % number)
            said(root, str(number))


def has_all_lines(root: Path, what: str) -> None:
    lines = (root / "lines").read_bytes().split(b"\n")[:-1] if (root / "lines").exists() else []
    told = [word.encode() for word in heard(root)]
    assert lines[: len(told)] == told, (what, lines)
    assert len(lines) <= len(told) + 1


def move_folders(root: Path) -> None:
    for number in range(2):
        fresh = root / f".{number}"
        (fresh / "inner").mkdir(parents=True)
        (fresh / "inner" / "data").write_bytes(b"data")
        (fresh / "valid").write_bytes(b"valid")
        put_in_place(fresh, root / str(number))
        said(root, str(number))
    remove_tree(root / "0", "valid")
    said(root, "gone")


def folders_are_whole(root: Path, what: str) -> None:
    for number in ("0", "1"):
        valid = (root / number / "valid").exists()
        if valid:
            assert (root / number / "valid").read_bytes() == b"valid", what
            assert (root / number / "inner" / "data").read_bytes() == b"data", what
        assert valid or number not in heard(root) or number == "0", what
    assert "gone" not in heard(root) or not (root / "0" / "valid").exists(), what


def careless(root: Path) -> None:
    (root / "partial").write_bytes(b"data" * 100)
    os.replace(root / "partial", root / "file")
    said(root, "old")
    (root / "other").mkdir()


def is_there(root: Path, what: str) -> None:
    assert not heard(root) or (root / "file").read_bytes() == b"data" * 100, what


CASES = {
    "replace": (replace_a_file, is_old_or_new),
    "append": (add_lines, has_all_lines),
    "folders": (move_folders, folders_are_whole),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_crash_at_any_point_leaves_old_or_new(case: str) -> None:
    done = in_process(__file__, case)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


def test_the_harness_sees_what_is_not_synced() -> None:
    done = in_process(__file__, "careless")
    assert done.returncode != 0
    assert "orderly at event" in done.stderr


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    with FileIO("/dev/full", "a") as full, pytest.raises(OSError, match="No space"):
        append(full, b"line\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder"):
        write_whole(tmp_path / "folder", b"a folder is in the way")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


if __name__ == "__main__":
    work, check = CASES.get(sys.argv[1], (careless, is_there))
    print(every_crash(work, check))
