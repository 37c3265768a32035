"""A stranger's checkpoint runs nothing, whichever part of it is hostile: neither in an export nor in a trainer."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.checkpoint.folder import MANIFEST, check, digest, finished_checkpoints, read_manifest, read_state
from moe.checkpoint.trusted import METADATA, check_trusted, read_metadata
from moe.errors import MoeError
from moe.weights.convert import export_checkpoint
from tests.helpers.moe_models import DENSE, trainer

pytestmark = pytest.mark.slow


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with everything in it."""
    path = tmp_path_factory.mktemp("stranger") / "step_000001"
    one = trainer(DENSE)
    one.save(path, {"drawn": 1})
    one.close()
    return path


@pytest.fixture
def stranger(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to be made hostile."""
    return Path(shutil.copytree(whole, tmp_path / "step_000001"))


def vouch(path: Path) -> None:
    """Update the manifest to match the files, as a stranger can."""
    content = json.loads((path / MANIFEST).read_text())
    content["files"] = {name: digest(path / name) for name in content["files"]}
    (path / MANIFEST).write_text(json.dumps(content))


def change_metadata(path: Path, change: Callable[[Any], object]) -> None:
    metadata = pickle.loads((path / METADATA).read_bytes())
    (path / METADATA).write_bytes(pickle.dumps(change(metadata) or metadata))
    vouch(path)


def evil_object(path: Path, trace: Path) -> None:
    """Put code in the place of the random state, behind all else in its file."""

    file = path / "__0_0.distcp"
    at = file.stat().st_size
    with open(file, "ab") as out:
        torch.save({"random": Evil(trace)}, out)

    def move(metadata: Any) -> None:
        for index, place in metadata.storage_data.items():
            if index.fqn.startswith("random"):
                place.offset, place.length = at, file.stat().st_size - at

    change_metadata(path, move)


def evil_metadata(path: Path, trace: Path) -> None:
    (path / METADATA).write_bytes(pickle.dumps(Evil(trace)))
    vouch(path)


def evil_inside(path: Path, trace: Path) -> None:
    def change(metadata: Any) -> None:
        metadata.planner_data = Evil(trace)

    change_metadata(path, change)


def evil_common(path: Path, trace: Path) -> None:
    torch.save({"counters": Evil(trace)}, path / "common.pt")
    vouch(path)


@pytest.mark.parametrize("harm", [evil_metadata, evil_inside, evil_object, evil_common])
def test_code_in_a_checkpoint_is_never_run(stranger: Path, tmp_path: Path, harm: Callable[[Path, Path], None]) -> None:
    trace = tmp_path / "trace"
    harm(stranger, trace)
    one = trainer(DENSE)
    try:
        with pytest.raises(MoeError, match=r"not to be trusted|cannot be read"):
            one.load(stranger)
    finally:
        one.close()
    if harm in (evil_metadata, evil_inside):  # an export reads neither objects nor what Megatron keeps beside tensors
        with pytest.raises(MoeError, match="could run code"):
            export_checkpoint(stranger, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    else:
        export_checkpoint(stranger, tmp_path / "out")
    assert not trace.exists()


def test_the_same_code_runs_where_nobody_looks(stranger: Path, tmp_path: Path) -> None:
    """The attack is real: Python's own unpickler falls for it."""
    evil_metadata(stranger, tmp_path / "trace")
    with open(stranger / METADATA, "rb") as file:
        pickle.load(file)
    assert (tmp_path / "trace").exists()


def outside(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).relative_path = "../../secret"


def beyond(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).length = 2**60


def other_kind(metadata: Any) -> None:
    metadata.state_dict_metadata["embedding.word_embeddings.weight"] = "a tensor"


def no_part(metadata: Any) -> None:
    metadata.state_dict_metadata["embedding.word_embeddings.weight"].chunks[0].sizes = torch.Size([10**9, 1])


def a_list(metadata: Any) -> list[Any]:
    return [metadata]


@pytest.mark.parametrize("change", [outside, beyond, other_kind, no_part, a_list])
def test_a_description_that_leads_elsewhere_is_refused(
    stranger: Path, tmp_path: Path, change: Callable[[Any], object]
) -> None:
    change_metadata(stranger, change)
    with pytest.raises(MoeError, match=r"not to be trusted"):
        export_checkpoint(stranger, tmp_path / "out")
    with pytest.raises(MoeError, match=r"not to be trusted"):
        check_trusted(stranger)


def test_a_whole_checkpoint_is_trusted(whole: Path, tmp_path: Path) -> None:
    check_trusted(whole)
    assert export_checkpoint(whole, tmp_path / "out").model_type == "llama"


def in_one_line(read: Callable[[], object]) -> None:
    """Read something: it succeeds, or says in one line why not."""
    said = ""
    try:
        read()
    except MoeError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


@settings(max_examples=150)
@given(st.data())
def test_any_change_to_the_description_is_refused_or_harmless(whole: Path, data: st.DataObject) -> None:
    """Any bytes in the file are read, or refused in one line."""
    content = bytearray((whole / METADATA).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:
            del content[at:]
            content += data.draw(st.binary(max_size=40)) or b"."
    other = whole.parent / "changed"
    other.mkdir(exist_ok=True)
    (other / METADATA).write_bytes(content)
    in_one_line(lambda: read_metadata(other, read_manifest(whole)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.data())
def test_any_manifest_is_read_or_refused_in_one_line(whole: Path, data: st.DataObject) -> None:
    stored = json.loads((whole / MANIFEST).read_text())
    name = data.draw(st.sampled_from(sorted(stored)))
    if data.draw(st.booleans()):
        stored[name] = data.draw(json_values)
    else:
        stored["files"] = data.draw(
            st.dictionaries(st.sampled_from(["..", "/etc/passwd", "a/../../b", "", "x"]), json_values)
        )
    path = whole.parent / "other" / "step_000002"
    path.mkdir(parents=True, exist_ok=True)
    (path / MANIFEST).write_text(json.dumps(stored))
    in_one_line(lambda: read_manifest(path))
    in_one_line(lambda: read_state(path))
    in_one_line(lambda: check(path))
    assert finished_checkpoints(path.parent) == [path]


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"[]", b"null", b'{"format": 1e999}', b""])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "step_000001").mkdir()
    (tmp_path / "step_000001" / MANIFEST).write_bytes(content)
    with pytest.raises(MoeError, match="cannot be read"):
        check(tmp_path / "step_000001")
