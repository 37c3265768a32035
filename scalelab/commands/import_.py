"""Write the weights of a Hugging Face folder as a Megatron checkpoint, which loads at any layout.

A family that the trainer does not have is refused with the names of those that it has. The weights keep their type.
The checkpoint holds no optimiser: a trainer starts with a fresh one. In memory is one parameter at a time, such as
the experts of a layer.

Example:  scalelab import models/SmolLM2-135M-Instruct checkpoints/smollm2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalelab.commands.arguments import add_json
from scalelab.commands.conversion import on_host, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="its config.json, safetensors and tokenizer")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="where to write it; must not be there yet")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Import a Hugging Face folder and print a summary."""
    with on_host():
        from moe.weights.convert import import_folder

        tell(import_folder(args.folder, args.checkpoint), args.json)
