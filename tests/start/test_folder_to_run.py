"""From a Hugging Face folder to fine-tuning, RL and back to plain transformers, by commands alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TINY = (
    *("Run.tasks=(@MathMiniature(),)", "Run.task_weights=None", "SFT.traces=tasks", "SFT.steps=2", "SFT.trainers=1"),
    *("SFT.traces_per_step=8", "Recipe.prompts_per_step=2", "Recipe.generations_per_prompt=4", "Budget.steps=2"),
    *("Evaluation.prompts=2", "Evaluation.samples=2", "GeneratorConfig.max_sequences=8", "Run.checkpoint_every=2"),
    *("Recipe.zero_variance=keep", "OptimizerConfig.lr=3e-3", "OptimizerConfig.warmup_steps=1"),
)
WHOLE_WAY = """
import json, shutil, sys
import pyarrow.parquet as pq
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from scalelab.cli import main
from scalelab.start.base_model import SHIPPED

sets = [part for one in json.loads(sys.argv[1]) for part in ("--set", one)]
family, more = json.loads(sys.argv[2])
shape = dict(
    vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
torch.manual_seed(0)
first = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**shape, **more}))
fixed = {name: tensor.normal_(0, 0.1) for name, tensor in first.named_buffers() if name.endswith("_correction_bias")}
first.save_pretrained("tiny")
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(SHIPPED / "quickstart" / name, "tiny")
print("the run begins here", file=sys.stderr)
assert main(["run", "quickstart", "--virtual", "--model", "tiny", "--out", "run", *sets]) == 0
print("the run ends here", file=sys.stderr)
assert "deprecated" in open("run/libraries.log").read()
assert main(["export", "run/checkpoints/step_000002", "back"]) == 0
last = AutoModelForCausalLM.from_pretrained("back", dtype=torch.float32)
was, now = first.state_dict(), last.state_dict()
assert was.keys() == now.keys()
assert all((was[name] != now[name]).any() == (name not in fixed) for name in was), "a weight never moved, or a bias did"

tokenizer = PreTrainedTokenizerFast.from_pretrained("back")
rows = pq.read_table("run/rollouts/step_000002.parquet").to_pylist()
assert len(rows) == 4
for row in rows:
    ids = torch.tensor([tokenizer.encode(row["prompt"]) + row["token_ids"]])
    logprobs = last(ids).logits[0, -len(row["token_ids"]) - 1 : -1].log_softmax(-1)
    ours = logprobs.gather(1, torch.tensor(row["token_ids"])[:, None])[:, 0]
    free = ~torch.tensor(row["forced"])
    torch.testing.assert_close(ours[free], torch.tensor(row["logprobs"])[free], atol=1e-4, rtol=0)
"""


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "deepseek_v3": {
        "num_key_value_heads": 2, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", [pytest.param("qwen2", marks=pytest.mark.nightly), "deepseek_v3"])
def test_a_folder_is_fine_tuned_trained_and_exported_to_plain_transformers(family: str, tmp_path: Path) -> None:
    environment = {**os.environ, "SCALELAB_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WHOLE_WAY, json.dumps(TINY), json.dumps([family, FAMILIES[family]])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stderr.partition("the run begins here")[2].partition("the run ends here")[0].splitlines()
    libraries = [line for line in said if re.search(r"Warning|deprecated|W\d{4} |shards", line)]
    assert libraries == [], "what libraries say is in a file"
