"""Weight publication: what it costs four trainer ranks that hold a model together, and an engine that takes it.

Two ways in one run. By shards, as the lab does: a rank is ready for its next step when its call returns; the engine
loads beside generation, and stands still for the exchange only. As a whole, as the lab did before: every rank gathers
every tensor and keeps it, the first one writes all into one file in memory while the others wait, and the engine stands
still while it loads. Besides, the ranks' own part in a broadcast: shards, then a walk through all tensors, whose
messages come on top. Run as a script, this file is one rank: ``python publication.py RANK NUMBER FOLDER``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from moe.model.families import Llama, Llama4Text, Model
from moe.settings import Layout, OptimizerConfig, TrainerSetup
from moe.train.trainer import Trainer
from moe.weights.memory_file import MEMORY
from moe.weights.shards import Snapshot
from scalelab.transfer.sizes import PARCEL

WORLD, ROUNDS, WAIT = 4, 3, 3600.0
SHARDS, WHOLE = ("shards", "whole")
WALK = "shards, and a walk through all tensors"
WAYS = (SHARDS, WALK, WHOLE)
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
    """Two tables, each with a row for every model and way."""
    yield f"{WORLD} processes, one thread each, fp32; medians of {ROUNDS} on the wall clock; largest over the ranks."
    measured = []
    for number, name in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            measured.append((name, *_measured(number, Path(folder))))
    yield ""
    yield (
        "| model | MB | way | a rank's share + two layers, MB | its peak over its model, MB | ranks stand still, s | "
        "engine stands still, s |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, told, engine in measured:
        size, layer = told[0]["bytes"] / 1e6, told[0]["layer"] / 1e6
        share = max(rank["share"] for rank in told) / 1e6
        for way in WAYS:
            peak, still = (max(rank[way][what] for rank in told) for what in (0, 1))
            own = f"{share:.0f} + {2 * layer:.0f}"
            stands = f"{engine[way]:.3f}" if way in engine else "–"
            yield f"| {name} | {size:.0f} | {way} | {own} | {peak:.0f} | {still:.2f} | {stands} |"
    yield ""
    yield "By shards, with the engine at work:"
    yield ""
    yield (
        "| model | engine has the weights after, s | its steps/s meanwhile, of those before | fetched by another "
        "machine, of the model |"
    )
    yield "|---|---|---|---|"
    for name, told, engine in measured:
        fetched = engine["fetched"] / told[0]["bytes"]
        yield f"| {name} | {engine['all']:.2f} | {engine['speed']:.2f} | {fetched:.3f} |"


def _measured(number: int, folder: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}  # what is freed goes back to the system
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(rank), str(number), str(folder)], env=environment
        )
        for rank in range(WORLD)
    ]
    try:
        told = [_awaited(folder / f"rank{rank}.pt", ranks) for rank in range(WORLD)]
        engine = _engine(folder, [one["segment"] for one in told])
    finally:
        (folder / "done").touch()
        for rank in ranks:
            rank.wait(WAIT)
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
    from scalelab.rollout.config import GeneratorSetup
    from scalelab.rollout.generator import Generator
    from scalelab.rollout.types import Request

    generator = Generator(folder / "model", GeneratorSetup(max_model_len=1024, max_sequences=4, kv_cache_gib=0.25))
    generator.submit([Request(f"long {n}", (5, 6, 7), 1000, temperature=1.0) for n in range(400)])
    pauses, alls, speeds, loads = [], [], [], []
    try:
        for _ in range(ROUNDS + 1):
            before = _steps_a_second(generator, lambda: time.sleep(5.0))[1]
            pause, speed, seconds = _steps_a_second(generator, lambda: generator.take_weights(segments))
            pauses.append(pause)
            speeds.append(speed / before)
            alls.append(seconds)
        for _ in range(ROUNDS + 1):
            loads.append(_standing_still(generator, segments))
    finally:
        generator.close()
    with closing(Snapshot(segments, machine="another")) as elsewhere:
        fetched = float(elsewhere.fetched)
    # the first time the twin of the model is made
    pause, seconds, speed, load = (sorted(values[1:])[ROUNDS // 2] for values in (pauses, alls, speeds, loads))
    return {SHARDS: pause, WHOLE: load, "all": seconds, "speed": speed, "fetched": fetched}


def _standing_still(generator: Any, segments: list[Any]) -> float:
    """Seconds that an engine needs to load all weights between two steps."""
    seconds = list[float]()

    def load(engine: Any) -> None:
        began = time.perf_counter()
        engine.replace_weights(snapshot)
        seconds.append(time.perf_counter() - began)

    with closing(Snapshot(segments)) as snapshot:
        generator._call(load, WAIT, "the engine to load all weights")
    return seconds[0]


def _steps_a_second(generator: Any, action: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result of an action, the engine's steps a second meanwhile, and its seconds."""
    steps, began = generator.stats()["steps"], time.perf_counter()
    given = action()
    seconds = time.perf_counter() - began
    return given, (generator.stats()["steps"] - steps) / seconds, seconds


def _peak(action: Callable[[], Any], before: float) -> tuple[float, float]:
    """MB of this process at most during an action, over what it had before the first, and its seconds."""
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    began = time.perf_counter()
    held = action()
    seconds = time.perf_counter() - began
    peak = _status("VmHWM") - before
    del held
    return peak, seconds


def _median(action: Callable[[], Any], before: float) -> tuple[float, float]:
    """The largest of several peaks, and the median of the seconds."""
    runs = [_peak(action, before) for _ in range(ROUNDS)]
    return max(peak for peak, _ in runs), sorted(seconds for _, seconds in runs)[ROUNDS // 2]


def _publish_whole(one: Trainer, path: Path) -> dict[str, torch.Tensor]:
    """Gather the whole model on every rank and write it on the first, as one object; no rank goes on before that."""
    gathered = {name: tensor.clone() for name, tensor in one.export_weights()}
    if one.rank == 0:
        path.unlink(missing_ok=True)
        save_file(gathered, path)
    dist.barrier()
    return gathered


def _publish_and_walk(one: Trainer) -> None:
    """Publish, then walk through all parcels, each of which is let go of before the next."""
    one.publish(1)
    deque(one.export_parcels(PARCEL), maxlen=0)


def _status(key: str) -> float:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[key].split()[0]) * 1024 / 1e6


def main(rank: int, number: int, folder: Path) -> None:
    """Measure as one rank, and keep the segment until all is read."""
    torch.set_num_threads(1)
    model, layout = list(CASES.values())[number]
    config = TrainerSetup(layout=layout, optimizer=OptimizerConfig(warmup_steps=0), deadline=WAIT)
    one = Trainer(model.to_hf(), config, rank, WORLD, f"file://{folder}/meeting")
    one.save_hf(folder / "model")
    sizes = {name: tensor.nbytes for name, tensor in one.export_weights()}
    layer = sum(size for name, size in sizes.items() if ".layers.0." in name)
    file = MEMORY / f"{folder.name}-whole"
    before = _status("VmRSS")
    whole = _median(lambda: _publish_whole(one, file), before)
    file.unlink(missing_ok=True)
    shards = _median(lambda: one.publish(1), before)
    walk = _median(lambda: _publish_and_walk(one), before)
    segment = one.publish(1)
    told: dict[str, Any] = {
        "bytes": sum(sizes.values()),
        "layer": layer,
        SHARDS: shards,
        WALK: walk,
        WHOLE: whole,
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
