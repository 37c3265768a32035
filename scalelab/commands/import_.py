"""The checkpoint holds the weights alone, in the type they have, and loads at any layout; a trainer that starts from it
starts a fresh optimiser. Llama, Llama-4 text, Mixtral, Qwen3 and Qwen3-MoE. Holds one parameter at a time, such as the
experts of a layer.

Example:  scalelab import models/SmolLM2-135M-Instruct checkpoints/smollm2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scalelab.commands.arguments import add_json
from scalelab.commands.conversion import stay_on_host, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with config.json, safetensors, and a tokenizer")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="where to write it; must not be there yet")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Import a Hugging Face folder and print a summary."""
    stay_on_host()
    from moe.weights.convert import import_folder

    tell(import_folder(args.folder, args.checkpoint), args.json)
