"""Weight publication: every rank's share in a segment, beside all weights as whole tensors in buffers on every rank.

Four ranks hold a model together. On a clock that starts with the call, a rank is ready for its next step when it
returns; the engine stands still while it loads. Run as a script, this file is one rank:
``python publication.py RANK WORLD FOLDER``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moe.model.config import Llama, Llama4Text, Model
from moe.train.config import Layout, OptimizerConfig, TrainerConfig
from moe.train.trainer import Trainer

WORLD, ROUNDS, WAIT = 4, 3, 900.0
CASES: dict[str, tuple[Model, Layout]] = {
    "Llama, 272M": (
        Llama(
            vocab_size=32768,
            hidden_size=1024,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=64,
            intermediate_size=3072,
            bos_token_id=1,
            eos_token_id=2,
        ),
        Layout(tensor=2, pipeline=2),
    ),
    "Llama-4, 16 experts, 240M": (
        Llama4Text(
            vocab_size=8192,
            hidden_size=512,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            intermediate_size=1024,
            bos_token_id=1,
            eos_token_id=2,
        ),
        Layout(expert=4, tensor=2),
    ),
}


def lines() -> Iterator[str]:
    """The tables, one row for every model and way."""
    yield f"{WORLD} processes, one thread each, fp32; medians of {ROUNDS} on the wall clock; largest over the ranks."
    yield ""
    yield "| model | MB | way | a rank's peak over its model, MB | ranks stand still, s | engine stands still, s |"
    yield "|---|---|---|---|---|---|"
    notes = []
    for number, name in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            told, engine = _measured(number, Path(folder))
        size = told[0]["bytes"]
        for way in ("buckets", "shards"):
            peak = max(rank[way]["peak"] for rank in told)
            still = max(rank[way]["seconds"] for rank in told)
            yield f"| {name} | {size / 1e6:.0f} | {way} | {peak:.0f} | {still:.2f} | {engine[way]:.2f} |"
        shares = [rank["share"] / size for rank in told]
        notes.append(
            f"{name}: shares of {min(shares):.3f} to {max(shares):.3f} of the model; a reader on another machine got "
            f"{engine['fetched'] / size:.3f} times the model, in {engine['fetch']:.2f} s beside generation."
        )
    yield ""
    yield from notes


def _measured(number: int, folder: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    ranks = [
        subprocess.Popen([sys.executable, "-W", "ignore", __file__, str(rank), str(number), str(folder)])
        for rank in range(WORLD)
    ]
    try:
        told = [_awaited(folder / f"rank{rank}.pt", ranks) for rank in range(WORLD)]
        engine = _engine(folder, [one["segment"] for one in told])
    finally:
        (folder / "done").touch()
        for rank in ranks:
            rank.wait(60)
    return told, engine


def _awaited(path: Path, ranks: list[subprocess.Popen]) -> Any:
    ends = time.monotonic() + WAIT
    while not path.exists():
        if any(rank.poll() for rank in ranks) or time.monotonic() > ends:
            raise RuntimeError(f"a rank ended, or none wrote {path} within {WAIT:.0f} s")
        time.sleep(0.1)
    return torch.load(path, weights_only=False)


def _engine(folder: Path, segments: list[Any]) -> dict[str, float]:
    """Seconds that an engine stands still while it takes the weights both ways."""
    from moe.weights.buckets import fill
    from moe.weights.hf_folder import FolderWeights
    from moe.weights.shards import Snapshot
    from scalelab.rollout.config import GeneratorConfig
    from scalelab.rollout.generator import Generator

    weights = FolderWeights(folder / "model")
    buckets = list(fill((name, weights[name]) for name in weights))
    generator = Generator(folder / "model", GeneratorConfig(max_model_len=128, kv_cache_gib=0.05))
    try:
        told = {
            "buckets": _median(lambda: generator.update_weights(1, buckets)),
            "shards": _median(lambda: generator.take_weights(segments)),
        }
    finally:
        generator.close()
    began = time.perf_counter()
    elsewhere = Snapshot(segments, machine="another")
    told.update(fetch=time.perf_counter() - began, fetched=float(elsewhere.fetched))
    for segment in elsewhere.segments:
        Path(segment.path).unlink()
    elsewhere.close()
    return told


def _median(action: Callable[[], float]) -> float:
    return sorted(action() for _ in range(ROUNDS))[ROUNDS // 2]


def _peak(action: Callable[[], Any]) -> tuple[float, float]:
    """MB by which an action raises this process's memory at most, and its seconds."""
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _status("VmRSS"), time.perf_counter()
    held = action()
    seconds = time.perf_counter() - began
    peak = _status("VmHWM") - before
    del held
    return peak, seconds


def _status(key: str) -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[key].split()[0]) * 1024 / 1e6


def main(rank: int, number: int, folder: Path) -> None:
    """Measure as one rank, and keep the segment until all is read."""
    torch.set_num_threads(1)
    model, layout = list(CASES.values())[number]
    config = TrainerConfig(layout=layout, optimizer=OptimizerConfig(warmup_steps=0), deadline=WAIT)
    one = Trainer(model.to_hf(), config, rank, WORLD, f"file://{folder}/meeting")
    one.save_hf(folder / "model")
    told: dict[str, Any] = {"bytes": sum(tensor.nbytes for _, tensor in one.export_weights())}
    ways: dict[str, Callable[[], Any]] = {
        "buckets": lambda: list(one.weight_buckets()),
        "shards": lambda: one.publish(1),
    }
    for way, action in ways.items():
        runs = [_peak(action) for _ in range(ROUNDS)]
        told[way] = {"peak": max(peak for peak, _ in runs), "seconds": sorted(s for _, s in runs)[ROUNDS // 2]}
    told["segment"] = one.publish(1)
    told["share"] = told["segment"].size
    dist.barrier()
    torch.save(told, folder / f"partial{rank}")
    (folder / f"partial{rank}").rename(folder / f"rank{rank}.pt")
    ends = time.monotonic() + WAIT
    while not (folder / "done").exists() and time.monotonic() < ends:
        time.sleep(0.1)
    one.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
