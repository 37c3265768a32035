"""Shares of weights in memory: readers get what was published, whole, of one version, and nothing is left behind."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from moe.model.families import Llama
from moe.weights.links import links
from moe.weights.segments import Segment, SupersededError, UnavailableError
from moe.weights.shards import Publisher, Snapshot

HF = Llama(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1).to_hf()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    one = Publisher()
    yield one
    one.close()


def parts(version: int) -> list[tuple[str, tuple, torch.Tensor]]:
    """All parameters of a small model, full of the version's number."""
    return [(link.param, (), torch.full(link.shape, float(version))) for link in links(HF)]


def versions(snapshot: Snapshot) -> set[float]:
    """The numbers that the weights are full of."""
    return {value for _, tensor in snapshot.weights(HF) for value in tensor.unique().tolist()}


def test_a_reader_keeps_its_version_while_newer_ones_replace_it(publisher: Publisher) -> None:
    first = publisher.publish(1, 0, parts(1))
    reader = Snapshot([first])
    second = publisher.publish(2, 0, parts(2))
    assert versions(reader) == {1.0}
    for worker in (Snapshot(reader.segments), Snapshot([second])):  # another process opens it through the first reader
        assert versions(worker) == {float(worker.version)}
        worker.close()
    reader.close()


def test_a_share_takes_the_memory_of_its_parts_and_no_more(publisher: Publisher) -> None:
    given = parts(1)
    segment = publisher.publish(1, 0, given)
    assert Path(segment.path).stat().st_size == segment.size
    assert 0 <= segment.size - sum(tensor.nbytes for _, _, tensor in given) <= 64 * (1 + len(given)), "aligned"


def test_a_version_that_is_replaced_is_never_mistaken_for_the_new_one(publisher: Publisher) -> None:
    first = publisher.publish(1, 0, parts(1))
    second = publisher.publish(2, 0, parts(2))
    assert first.path == second.path, "the new file has the old one's number, or this test tests nothing"
    with pytest.raises(SupersededError, match="weights of version 1 are gone"):
        Snapshot([first])
    with pytest.raises(SupersededError, match="no longer has the weights of version 1"):
        Snapshot([first], machine="another")


def test_another_machine_fetches_once_for_all_its_readers_and_leaves_nothing(
    publisher: Publisher, tmp_path: Path
) -> None:
    segment = publisher.publish(3, 0, parts(3))
    with ThreadPoolExecutor(3) as pool:
        readers = list(pool.map(lambda _: Snapshot([segment], tmp_path, "another"), range(3)))
    assert sum(reader.fetched for reader in readers) == segment.size
    assert [versions(reader) for reader in readers] == [{3.0}] * 3
    publisher.close()
    for reader in readers:
        assert versions(Snapshot(reader.segments, tmp_path, "another")) == {3.0}, "by a worker process of the reader"
        assert list(tmp_path.iterdir())
        reader.close()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_gone_is_said(publisher: Publisher) -> None:
    segment = publisher.publish(4, 0, parts(4))
    publisher.close()
    with pytest.raises(UnavailableError, match=r"rank 0 at 127.0.0.1:\d+ did not hand over the weights of version 4"):
        Snapshot([segment], machine="another", deadline=5.0)
    with pytest.raises(UnavailableError, match="version 4 are gone"):
        Snapshot([segment])


@pytest.mark.slow
def test_nothing_is_left_of_a_rank_that_was_killed(tmp_path: Path) -> None:
    """Its file goes with it, for all but those who have opened it."""
    script = (
        "import pickle, sys, time, torch\n"
        "from moe.weights.shards import Publisher\n"
        "one = Publisher()\n"
        "segment = one.publish(5, 0, pickle.load(open(sys.argv[1], 'rb')))\n"
        "pickle.dump(segment, open(sys.argv[1] + '.told', 'wb')); print(flush=True); time.sleep(100)"
    )
    given = tmp_path / "parts"
    given.write_bytes(pickle.dumps(parts(5)))
    rank = subprocess.Popen([sys.executable, "-c", script, str(given)], stdout=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()
    segment: Segment = pickle.loads(Path(f"{given}.told").read_bytes())
    reader = Snapshot([segment])
    rank.kill()
    rank.wait()
    rank.stdout.close()
    assert versions(reader) == {5.0}
    with pytest.raises(SupersededError):
        Snapshot([segment])
    reader.close()
