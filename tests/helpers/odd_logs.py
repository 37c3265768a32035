"""One run as many trainers, spreadsheets and accidents write it down."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

COMPUTE = (0, 250, 500, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000)
RATE = (0.2215, 0.2655, 0.33, 0.4345, 0.485, 0.5095, 0.5755, 0.5705, 0.5685, 0.5965, 0.588)
HOURS = "gpu_hours,pass_rate"
LINES = tuple(f"{compute},{rate}" for compute, rate in zip(COMPUTE, RATE))


def lines(*rows: str) -> str:
    """Rows, one to a line."""
    return "\n".join(rows) + "\n"


def verl(step: int, rate: float) -> str:
    """A step as verl's console has it, in colour and among other numbers."""
    return (
        f"\x1b[36m(TaskRunner pid=700829)\x1b[0m step:{step} - actor/lr:1e-06 - val-core/openai/gsm8k/reward/mean@1:"
        f"np.float64({rate}) - val-aux/num_turns/mean:2.0 - training/global_step:{step} - timing_s/step:48.4"
    )


TEXTS: dict[str, str] = {
    "plain.csv": lines(HOURS, *LINES),
    "identical_lines.csv": lines(HOURS, *LINES[:6], LINES[5], *LINES[6:]),
    "resumed.csv": lines(HOURS, *LINES[:5], "2000,0.7", "3000,0.8", *LINES[5:]),
    "resumed_at_a_step.csv": lines(
        "step,gpu_hours,pass_rate",
        *(f"{step},{line}" for step, line in enumerate(LINES[:7])),
        "5,1990,0.9",
        *(f"{step},{line}" for step, line in enumerate(LINES) if step > 3),
    ),
    "gaps.csv": lines(HOURS, *LINES[:4], "1250,nan", *LINES[4:7], "3500,", *LINES[7:]),
    "percent_signs.csv": lines(HOURS, *(f"{c},{100 * r:.2f}%" for c, r in zip(COMPUTE, RATE))),
    "thousands.csv": lines(HOURS, *(f'"{c:,}",{r}' for c, r in zip(COMPUTE, RATE))),
    "multiples.csv": lines(HOURS, *(f"{c / 1000:g}k,{r}" for c, r in zip(COMPUTE, RATE))),
    "decimal_commas.csv": lines("gpu_hours;pass_rate", *(f"{c};{r}".replace(".", ",") for c, r in zip(COMPUTE, RATE))),
    "other_case.csv": lines("GPU Hours,Pass-Rate", *LINES),
    "comments.csv": lines("# run A", HOURS, *LINES[:3], "# restarted the node", *LINES[3:]),
    "header_in_a_comment.csv": lines("# " + HOURS, *LINES),
    "header_again.csv": lines(HOURS, *LINES[:6], HOURS, *LINES[6:]),
    "unsorted.csv": lines(HOURS, *LINES[5:], *LINES[:5]),
    "long_text.csv": lines(HOURS + ",completion", f"{LINES[0]},{'x' * 140_000}", *(f"{line},y" for line in LINES[1:])),
    "metrics.csv": lines(
        "gpu_hours,metric,value", *(f"{c},acc,{r}\n{c},loss,{1 - r:.3f}" for c, r in zip(COMPUTE, RATE))
    ),
    "seconds.csv": lines("wall_seconds,pass_rate", *(f"{3600 * c},{r}" for c, r in zip(COMPUTE, RATE))),
    "unix.csv": lines("time,pass_rate", *(f"{1782498888 + 3600 * c},{r}" for c, r in zip(COMPUTE, RATE))),
    "nested.json": json.dumps([{"metrics": {"pass_rate": r}, "cost": {"gpu_hours": c}} for c, r in zip(COMPUTE, RATE)]),
    "torn.jsonl": "".join(json.dumps({"gpu_hours": c, "eval/pass_rate": r}) + "\n" for c, r in zip(COMPUTE, RATE))
    + '{"gpu_hours": 9000, "eval/pa',
    "trainer_state.json": json.dumps(
        {
            "best_metric": None,
            "log_history": [
                line
                for c, r in zip(COMPUTE, RATE)
                for line in ({"step": c, "loss": 0.7}, {"step": c, "eval_accuracy": r, "eval_loss": 0.3})
            ],
        }
    ),
    "verl.log": lines("Training from scratch", *(verl(c, r) for c, r in zip(COMPUTE, RATE)), "done"),
    "prime.log": lines(
        *(
            f"12:00:00    INFO Running evals for checkpoint step {c}\n"
            f"12:01:00 SUCCESS Evaluated gsm8k in 33.21s (Avg@4={r:.4f}, Pass@1: {r:.4f}, Truncated: 0.0%)"
            for c, r in zip(COMPUTE, RATE)
        )
    ),
    "trl.txt": lines(
        "  0%|          | 0/100",
        *(
            f"{{'loss': 0.1, 'epoch': {c}}}\n{{'eval_loss': 0.5, 'eval_accuracy': {r}, 'epoch': {c}}}"
            for c, r in zip(COMPUTE, RATE)
        ),
    ),
    "chart.csv": lines(
        '"Step","a - val/aime24/acc","a - val/aime24/acc__MIN","a - val/aime24/acc__MAX"',
        *(f'"{c}","{r}","{r}","{r}"' for c, r in zip(COMPUTE, RATE)),
    ),
    "history.csv": lines(
        "_step,_timestamp,train/gpu_hours,loss,eval/math/acc",
        *(f"{c},1.7e9,{c},0.5,\n{c},1.7e9,,,{r}" for c, r in zip(COMPUTE, RATE)),
    ),
    "tensorboard.csv": lines("Wall time,Step,Value", *(f"1782498888.5,{c},{r}" for c, r in zip(COMPUTE, RATE))),
    "passes.csv": lines("gpu_hours,correct,total", *(f"{c},{round(r * 2000)},2000" for c, r in zip(COMPUTE, RATE))),
}
"""Name of a log → its text; all of them hold the points `COMPUTE` and `RATE`."""

BYTES: dict[str, Callable[[], bytes]] = {
    "utf16.csv": lambda: TEXTS["plain.csv"].encode("utf-16"),
    "utf16_without_a_mark.csv": lambda: TEXTS["plain.csv"].encode("utf-16-le"),
    "with_a_mark.csv": lambda: TEXTS["plain.csv"].encode("utf-8-sig"),
    "plain.csv.gz": lambda: gzip.compress(TEXTS["plain.csv"].encode()),
    "two_parts.jsonl.gz": lambda: b"".join(
        gzip.compress(part.encode()) for part in TEXTS["torn.jsonl"].rpartition('{"gpu_hours": 4')
    ),
}
"""Name of a log in other bytes than those of its text → these; likewise."""

REFUSED: dict[str, tuple[str, str]] = {
    "percent.csv": (lines(HOURS, *(f"{c},{100 * r}" for c, r in zip(COMPUTE, RATE))), "--rate-range 0 100"),
    "score.csv": (lines(HOURS, *(f"{c},{2.1 * r:.3f}" for c, r in zip(COMPUTE, RATE))), "--rate-range 0 1.25"),
    "no_header.csv": (lines(*LINES), "row 1: numbers where names of columns should stand"),
    "infinite.csv": (lines(HOURS, *LINES, "9000,inf"), "row 13, column pass_rate: inf is not a number"),
    "negative.csv": (lines(HOURS, "-100,0.2", *LINES), "row 2, column gpu_hours: -100 is negative"),
    "no_samples.csv": (lines(HOURS + ",n", *(f"{line},0" for line in LINES)), "column n: 0 is not positive"),
    "two_runs.csv": (lines(HOURS, *LINES, "0,0.2", *LINES[1:]), "starts again at 0; tell two runs apart"),
    "tasks_mixed.csv": (
        lines(HOURS, *(f"{line}\n{line}1" for line in LINES)),
        "row 3, column gpu_hours: 0 is in row 2 too",
    ),
    "late_start.csv": (
        lines(HOURS, *(f"{c + 100_000},{r}" for c, r in zip(COMPUTE, RATE))),
        "--compute-start 100000",
    ),
    "two_devices.csv": (
        lines(f"{HOURS},compute_unit", *(f"{line},{'A' if at < 5 else 'H'}100-hours" for at, line in enumerate(LINES))),
        "row 7, column compute_unit: mixed units, H100-hours after A100-hours",
    ),
    "either_comma.csv": (lines("gpu_hours;pass_rate", "1,500;0", "2,500;1"), "may part thousands or decimals"),
    "some_percent.csv": (lines(HOURS, "0,20%", "1,0.3", "2,40%"), "row 3, column pass_rate: '0.3' is not a n"),
    "no_time.csv": (lines("time,pass_rate", "yesterday,0.2", "today,0.3"), "'yesterday' is no time"),
    "talk.log": ("Epoch 1 went well.\n", "no evaluations of verl, prime-rl or TRL in this text"),
    "cut.csv.gz": ("", "the file is empty"),
}  # fmt: skip
"""Name of a log that cannot be read → its text, and a part of the reason."""


def write(folder: Path, name: str) -> Path:
    """Write one of the logs above."""
    path = folder / name
    if name in BYTES:
        path.write_bytes(BYTES[name]())
    else:
        path.write_text(TEXTS[name] if name in TEXTS else REFUSED[name][0], encoding="utf-8")
    return path
