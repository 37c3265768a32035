"""Log-probabilities, entropies and their backward pass at a large vocabulary, against the straightforward fp32 version.

Each measurement has a process of its own, of one thread; memory is the process's peak above where it stood with its
inputs, as Linux counts it. The straightforward version holds several [tokens, vocabulary] tensors: where the machine
has no room for all tokens, it runs on fewer, and its memory and time are scaled up, both being proportional to them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from moe.model.head import product, token_logprobs
from moe.settings import TrainerSetup

VOCABULARY, HIDDEN, TOKENS = 202_048, 512, 8_192
_COPIES = 4  # [tokens, vocabulary] tensors of the straightforward version, generously
REPEATS = 2


def lines() -> Iterator[str]:
    """The table: both versions in turn, twice; means."""
    few = TOKENS
    while few > 512 and few * VOCABULARY * 4 * _COPIES > _free() / 4:  # the rest is others'
        few //= 2
    told: dict[str, list[dict[str, float]]] = {"plain": [], "ours": []}
    for _ in range(REPEATS):
        told["plain"].append(_measured("plain", few))
        told["ours"].append(_measured("ours", TOKENS))
    scale = TOKENS / few
    plain, ours = ({key: statistics.mean(run[key] for run in runs) for key in runs[0]} for runs in told.values())
    yield f"Vocabulary {VOCABULARY:,}, hidden {HIDDEN}, {TOKENS:,} tokens, fp32; means of {REPEATS}."
    if scale > 1:
        yield f"The machine has room for the straightforward version on {few:,} tokens: × {scale:.0f}."
    yield f"Output product: {product('cpu', torch.float32, True).why}."
    yield ""
    yield "| | peak, MiB | CPU seconds | wall seconds |"
    yield "|---|---|---|---|"
    held = few * HIDDEN * 4 * 2**-20 + VOCABULARY * HIDDEN * 4 * 2**-20  # gradients of the inputs
    peak = held + (plain["peak"] - held) * scale
    yield f"| straightforward | {peak:.0f} | {plain['cpu'] * scale:.1f} | {plain['wall'] * scale:.1f} |"
    yield f"| chunked, recomputed | {ours['peak']:.0f} | {ours['cpu']:.1f} | {ours['wall']:.1f} |"
    cpu, wall = (ours[key] / plain[key] / scale for key in ("cpu", "wall"))
    yield f"| ratio | {ours['peak'] / peak:.3f} | {cpu:.2f} | {wall:.2f} |"


def _free() -> int:
    """Bytes that can be had without swapping."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _measured(version: str, tokens: int) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, version, str(tokens)], check=True, capture_output=True, text=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def _plain(hidden_TH: Tensor, weight_VH: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy as one would write them down."""
    logp_TV = torch.log_softmax(hidden_TH @ weight_VH.t(), dim=-1)
    with torch.no_grad():
        entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
    return logp_TV.gather(1, targets_T.unsqueeze(1)).squeeze(1), entropy_T


def _ours(hidden_TH: Tensor, weight_VH: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    return token_logprobs(hidden_TH, weight_VH, targets_T, chunk=TrainerSetup.head_chunk)


def _memory(key: str) -> float:
    """A line of this process's status, in MiB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[key].split()[0]) / 1024


def main(version: str, tokens: int) -> None:
    """Measure one version once."""
    torch.set_num_threads(1)
    stream = torch.Generator().manual_seed(0)
    hidden_TH = torch.randn(tokens, HIDDEN, generator=stream, requires_grad=True)
    weight_VH = torch.randn(VOCABULARY, HIDDEN, generator=stream).mul_(HIDDEN**-0.5).requires_grad_()
    targets_T = torch.randint(VOCABULARY, (tokens,), generator=stream)
    weights_T = torch.randn(tokens, generator=stream)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    before, cpu, wall = _memory("VmRSS"), time.process_time(), time.perf_counter()
    logprobs_T, _ = {"plain": _plain, "ours": _ours}[version](hidden_TH, weight_VH, targets_T)
    (logprobs_T * weights_T).sum().backward()
    told = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "peak": _memory("VmHWM") - before}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
