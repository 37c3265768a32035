"""Make a fine-tuned model one that comes with the lab: in bfloat16, with the key by which runs find it.

    scalelab sft quickstart --out models/quickstart
    python tools/ship_base.py quickstart models/quickstart

and the same with `study/scalerl` and `models/study`, for the study; for the second study with `study_two/scalerl` and
`--also` its members `false_…`, whose verdicts err in RL alone, and `prompts_1024`, which has more prompts in RL alone.

Do this again when a change of their model, tasks or fine-tuning gives its base model another key;
`tests/start/test_shipped_base.py` fails then.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from moe.model.reading import read_config
from moe.weights.hf_folder import copy_tokenizer, save_folder
from scalelab.experiment import resolve
from scalelab.start.base_model import KEY, SHIPPED, base_tokenizer, cache_key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="a name, whose base model it is; a family's members share theirs")
    parser.add_argument("--also", nargs="*", default=[], help="members of another key and these weights")
    parser.add_argument("model", type=Path, help="Hugging Face folder that `scalelab sft EXPERIMENT` wrote")
    args = parser.parse_args()
    run = resolve(args.experiment).run
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(args.model / "model.safetensors").items()}
    folder = SHIPPED / args.experiment.partition("/")[0]
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    save_folder(folder, read_config(args.model), weights.items(), shapes)
    copy_tokenizer(args.model, folder)
    shutil.copyfile(args.model / "generation_config.json", folder / "generation_config.json")
    runs = [run, *(resolve(name).run for name in args.also)]
    (folder / KEY).write_text("".join(f"{cache_key(one, base_tokenizer(one))}\n" for one in runs))
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
