"""Write the weights of a checkpoint as a Hugging Face folder, which transformers and vLLM load.

CHECKPOINT is one that `scalelab import` made, or RUN/checkpoints/step_… of a run, written at any layout. Its tokenizer
is copied too. In memory is one parameter at a time, such as the experts of a layer.

Example:  scalelab export runs/quickstart/checkpoints/step_000150 models/my_model
"""

from __future__ import annotations

import argparse
from pathlib import Path

from moe.checkpoint.folder import read_manifest
from scalelab.commands.arguments import add_json
from scalelab.commands.conversion import on_host, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint's own folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it; must not be there yet")
    parser.add_argument("--shard-gb", type=float, default=5.0, metavar="GB", help="largest size of a file, about")
    parser.add_argument(
        "--expert-bias",
        action="store_true",
        help="write biases of experts (TrainerConfig.expert_bias), which only scalelab reads, beside the weights",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Export a checkpoint and print a summary."""
    read_manifest(args.checkpoint)  # refuses a wrong path before torch is imported
    with on_host():
        from moe.weights.convert import export_checkpoint

        shard_bytes = int(args.shard_gb * 1e9)
        tell(export_checkpoint(args.checkpoint, args.folder, shard_bytes, args.expert_bias), args.json)
