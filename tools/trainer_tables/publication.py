"""Weight publication: what it costs four trainer ranks that hold a model together, and an engine that takes it.

A rank is ready for its next step when its call returns. The engine loads beside generation, and stands still only for
the exchange. Run as a script, this file is one rank: ``python publication.py RANK NUMBER FOLDER``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
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
    """The table, one row for every model."""
    yield f"{WORLD} processes, one thread each, fp32; medians of {ROUNDS} on the wall clock; largest over the ranks."
    yield ""
    yield (
        "| model | MB | a rank's share, two layers, MB | its peak over its model, MB | ranks stand still, s | engine "
        "stands still, s | has the weights after, s | steps/s meanwhile, of those before | fetched by a machine, of "
        "the model |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for number, name in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            told, engine = _measured(number, Path(folder))
        size, layer = told[0]["bytes"], told[0]["layer"]
        peak, still, share = (max(rank[what] for rank in told) for what in ("peak", "seconds", "share"))
        yield (
            f"| {name} | {size / 1e6:.0f} | {share / 1e6:.0f} + {2 * layer / 1e6:.0f} | {peak:.0f} | {still:.2f} | "
            f"{engine['pause']:.4f} | {engine['all']:.2f} | {engine['speed']:.2f} | {engine['fetched'] / size:.3f} |"
        )


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
    """Measure how an engine at work takes the weights."""
    from moe.weights.shards import Snapshot
    from scalelab.rollout.config import GeneratorConfig
    from scalelab.rollout.generator import Generator
    from scalelab.rollout.types import Request

    generator = Generator(folder / "model", GeneratorConfig(max_model_len=4096, max_sequences=4, kv_cache_gib=1.0))
    generator.submit([Request(f"long {n}", (5, 6, 7), 4000, temperature=1.0) for n in range(400)])
    pauses, alls, speeds = [], [], []
    try:
        for _ in range(ROUNDS + 1):
            before = _steps_a_second(generator, lambda: time.sleep(5.0))[1]
            pause, speed, seconds = _steps_a_second(generator, lambda: generator.take_weights(segments))
            pauses.append(pause)
            speeds.append(speed / before)
            alls.append(seconds)
    finally:
        generator.close()
    with closing(Snapshot(segments, machine="another")) as elsewhere:
        fetched = float(elsewhere.fetched)
    # the first time the twin of the model is made
    pause, seconds, speed = (sorted(values[1:])[ROUNDS // 2] for values in (pauses, alls, speeds))
    return {"pause": pause, "all": seconds, "speed": speed, "fetched": fetched}


def _steps_a_second(generator: Any, action: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result of an action, the engine's steps a second meanwhile, and its seconds."""
    steps, began = generator.stats()["steps"], time.perf_counter()
    given = action()
    seconds = time.perf_counter() - began
    return given, (generator.stats()["steps"] - steps) / seconds, seconds


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
    sizes = {name: tensor.nbytes for name, tensor in one.export_weights()}
    layer = sum(size for name, size in sizes.items() if ".layers.0." in name)
    runs = [_peak(lambda: one.publish(1)) for _ in range(ROUNDS)]
    segment = one.publish(1)
    told: dict[str, Any] = {
        "bytes": sum(sizes.values()),
        "layer": layer,
        "peak": max(peak for peak, _ in runs),
        "seconds": sorted(seconds for _, seconds in runs)[ROUNDS // 2],
        "segment": segment,
        "share": segment.size,
    }
    dist.barrier()
    torch.save(told, folder / f"partial{rank}")
    (folder / f"partial{rank}").rename(folder / f"rank{rank}.pt")
    ends = time.monotonic() + WAIT
    while not (folder / "done").exists() and time.monotonic() < ends:
        time.sleep(0.1)
    one.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
