"""Fine-tune the model that an experiment's RL starts from, and write it as a Hugging Face folder.

It learns from the traces in SFT.traces, starting from the model in SFT.pretrained. Without these two it learns from the
tasks' own traces. Given again after a fault, the same command goes on from its newest checkpoint. The folder then goes
to RL as SFT.pretrained. docs/models.md says which models and traces fit.

Examples:
  scalelab sft sft/scalerl_8b --out models/llama_8b_sft
  scalelab sft sft/scalerl_8b --out models/llama_8b_sft --set PublicTraces.folder="'data'" --set SFT.steps=200
  scalelab sft quickstart --out models/quickstart_sft --set SFT.steps=100
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalelab.commands.arguments import add_experiment, add_json
from scalelab.doctor import demand_engines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_experiment(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; must not exist yet")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Fine-tune and print the losses on held-out traces."""
    from scalelab.commands.output import print_json
    from scalelab.experiment import resolve
    from scalelab.session.native_output import python_stderr_apart, without_library_warnings
    from scalelab.session.only_sft import fine_tune
    from scalelab.signals import heed_signals
    from scalelab.virtual.cluster import take_arithmetic
    from scalelab.watch.progress import Progress

    experiment = resolve(args.experiment, args.sets, imports=True)
    take_arithmetic(experiment.run)
    demand_engines()
    heed_signals()
    with python_stderr_apart(), without_library_warnings(), Progress() as progress:
        summary = fine_tune(experiment.run, args.out, progress)
    if args.json:
        print_json({"experiment": experiment.name, "folder": str(args.out), **summary})
        return
    losses = summary["held_out_loss"]
    if losses:
        (_, before), (_, after) = losses[0], losses[-1]
        print(
            f"loss on held-out traces: {before:.4f} before, {after:.4f} after {summary['steps']} steps (nats a token)"
        )
    print(f"model: {args.out}; RL starts from it with --set SFT.pretrained={str(args.out)!r}")
