"""The subjects of `tests/commands/approved`: commands by what they are about, and data that no command prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.helpers import odd_logs
from tests.helpers.approved_refusals import REFUSED
from tests.helpers.approved_sources import DAMAGES, OLDER
from tests.helpers.approved_states import evaluations, runs, states

_WORDY = re.compile(r"typing\.|FieldInfo\(annotation=NoneType, required=True, metadata=")
Data = Callable[[], Mapping[str, Any]]
_SHARED = "--set SFT.pretrained=/shared/models/8b"
_LOGS = [f"odd/{name}" for name in (*odd_logs.TEXTS, *odd_logs.BYTES)]

COMMANDS: dict[str, tuple[str, ...]] = {
    "fit": (
        "fit both.csv",
        "fit both.csv --wide",
        "fit both.csv --json",
        "fit base.csv short.csv forgets.csv unstable.csv rises_again.csv --wide",
        "fit unstable.csv --json",
        "fit both.csv --method power --since 300 --wide",
        "fit both.csv --until 500 --r0 0.2 --level 0.9 --sigmoid-only --no-prior --wide",
        "fit both.csv --mean math=2,code --wide",
        "fit recorded/scalerl recorded/too_fast --wide",
        "fit both.csv recorded/scalerl/seed_0",
    ),
    "forecast": (
        "forecast both.csv --at 2000 4000 --target 0.6 0.95 --wide",
        "forecast both.csv --at 2000",
        "forecast short.csv forgets.csv rises_again.csv unstable.csv --at 2000 --target 0.4 0.65 --wide",
        "forecast short.csv --at 2000 --target 0.65 --json",
    ),
    "compare": (
        "compare base.csv better.csv slower.csv",
        "compare base.csv better.csv slower.csv --wide",
        "compare base.csv better.csv slower.csv --json",
        "compare base.csv better.csv unstable.csv forgets.csv --at 500 --reach 0.5 --seed-spread 0.005 "
        "--margin 0.01 --wide",
        "compare base.csv better.csv --tie overlap --error 0.2 --spread-from slower.csv",
        "compare short.csv rises_again.csv unstable.csv --wide",
        "compare recorded/scalerl recorded/magistral --wide",
        "compare graded.csv --by-prompt",
        "compare graded.csv --by-prompt pass@2 --json",
        "compare schedules/synchronous schedules/pipeline_8 schedules/ppo_off_policy_8 --price h100 --task math",
        "compare few_a.csv few_b.csv --calibrate 10",
    ),
    "decide": (
        "decide base.csv better.csv slower.csv --budget 2000",
        "decide base.csv better.csv slower.csv --budget 2000 --json",
        "decide both.csv --budget 500 --worthwhile 0.001",
        "decide short.csv --budget 2000",
        "decide base.csv unstable.csv --budget 200 --json",
        "decide forgets.csv --budget 200",
    ),
    "design": (
        "design --seed-spread 0.0125 --seeds 2 5 --evaluations 12 --json",
        "design base.csv better.csv --difference 0.05 --seeds 3 --evaluations 16",
        "design --seed-spread 0.01 --of A --known --recipes 4 --seeds 2 --evaluations 12",
        "design --seed-spread 0.1 --of C_mid --difference 0.2 --seeds 2 --evaluations 12",
        "design --seed-spread 0.0125 --seeds 2 --evaluations 12 --training-completions 30000 "
        "--prompt-spread 0.1 --drift 0.002",
        "design --seed-spread 0.0125 --seeds 2 --evaluations 12 --recipes 3 --certainty 0.8 --calibrate 10",
        "design --seed-spread 0.0125 --seeds 2 --evaluations 12 --early-samples 4 --samples 8 "
        "--full-from 0.5 --prompts 500",
    ),
    "law": (
        "law along.csv --axis batch --at 5000 --predict batch=2048 --budget 3000",
        "law along.csv --axis batch --at 5000 --predict batch=2048 --json",
        "law study/batch_64 study/scalerl study/batch_256 --axis batch --axis length --task math",
    ),
    "read": (
        *(f"read {log} --json" for log in _LOGS),
        *(f"read odd/{name}" for name in odd_logs.REFUSED),
        "read both.csv",
        "read along.csv base.csv",
        "read schedules/pipeline_8",
        "read study/batch_64 --json",
    ),
    "plan": (
        "plan scalerl_8b",
        "plan scalerl_17bx16 --expert-mfu 0.2 --imbalance 1.5 --hardware b200",
        "plan scalerl_17bx16 --gpus 160 --hardware h100 --json",
        "plan scalerl_17bx16 --hardware a100",
        "plan scalerl_8b --mfu 0.3 --bandwidth 0.5 --iteration 0.02 --median 0.7 --dropped 0.3 --exchange 0.4 --json",
        "plan scalerl_8b --gpus 4",
        "plan scalerl_8b --hardware gb200",
        "plan scalerl_8b --set Recipe.max_tokens=30720 --set GeneratorConfig.max_model_len=32768 --json",
        "plan h100/scalerl_8b_node --json",
        "plan h200/scalerl_17bx16_least --json",
        "plan qwen/qwen3_30b_a3b_node --json",
        "plan qwen/qwen25_7b_node",
        "plan sft/scalerl_8b",
        "plan smollm2_one_gpu --json",
        "plan recipes/deepseek_grpo --json",
        "plan quickstart --like recorded/scalerl/seed_0 --json",
        "plan h100/scalerl_8b --set 'Evaluation.sets=(@HeldOut(), @Benchmark())' "
        "--set \"Benchmark.data='livecodebench'\"",
        "plan h100/scalerl_8b --set 'Run.tasks=(@ReasoningGym(),)' --set Run.task_weights=None "
        "--set \"ReasoningGym.family='leg_counting'\" --set ReasoningGym.seconds_per_reward=2.0 "
        "--set ReasoningGym.workers=1 --set Cluster.verifiers=2",
        "plan quickstart --set MathMiniature.size=800",
    ),
    "simulate": (
        "simulate quickstart --hours 0.05 --no-search",
        "simulate scalerl_8b --hours 0.5 --no-search --json",
        "simulate h100/scalerl_8b_node --hours 1",
        "simulate h100/scalerl_8b_node --hours 1 --json",
        "simulate scalerl_17bx16 --hours 0.5 --no-search",
        "simulate h100/scalerl_8b_node --hours 0.6 --no-search --set Run.schedule=@PPOOffPolicy()",
        "simulate h100/scalerl_8b_node --hours 0.6 --no-search --set Run.schedule=@Synchronous() --kept 0.5 "
        "--median 2000 --sigma 0.3 --prompt-tokens 100 --rate host_seconds=2 --json",
        "simulate qwen/qwen3_30b_a3b_node --hours 0.5 --no-search --no-evaluations --imbalance 1.3 --json",
        "simulate h100/scalerl_8b_node --hours 0.3 --no-search --lengths recorded/scalerl/seed_0",
        "simulate h100/scalerl_8b_node --gpus 16 --trainers 8 --hours 0.5 --no-search",
    ),
    "launch": (
        f"launch slurm h100/scalerl_8b --out /shared/runs/8b --time 2-00:00:00 {_SHARED}",
        f"launch slurm qwen/qwen3_30b_a3b --out /shared/runs/qwen --partition gpu --container lab.sqsh {_SHARED}",
        f"launch ray h100/scalerl_8b_node --out /shared/runs/8b --hosts 10.0.0.1 --user me {_SHARED}",
        "launch k8s h100/scalerl_8b --out /runs/8b --image scalelab --claim runs --set SFT.pretrained=/runs/models/8b",
    ),
    "refused": REFUSED,
    "show": (
        "show quickstart --diff scalerl_8b",
        "show leave_one_out/loss --diff scalerl_8b --json",
        "show quickstart --set OptimizerConfig.lr=1e-4",
        "show quickstart --set OptimizerConfig.lr=1e-4 --json",
        "list --json",
        "list quickstart --json",
    ),
    "books": (
        "check whole --json",
        *(f"check {name}" for name in DAMAGES),
        *(f"check {name}_older --json" for name in OLDER),
        "check other_weights --fast",
        "check schedules/synchronous",
        "status whole --json",
        "status went_back",
        "list --runs went_back --json",
        "status page/other --wide",
        "list --runs page",
        "rollouts page/one/seed_0",
        "rollouts page/one/seed_0 --failed --limit 2 --task code",
        "rollouts page/one/seed_0 --vs 0",
        "rollouts page/one/seed_0 --vs page/one/seed_1 --json",
        "rollouts page/one/seed_0 --prompt math/1 --json",
        "rollouts recorded/scalerl/seed_0 --search 7 --limit 2",
        "report page -o page.html --markdown",
        "report few_a.csv --markdown",
        "report few_a.csv --figure few_a.svg",
        "report few_a.csv",
        "data check odd_answers/rows.jsonl --quick",
        "data check odd_answers/rows.jsonl --quick --json",
    ),
}
"""Subject → its commands, which end in a folder with the logs of `approved_sources`."""


def _options() -> dict[str, Any]:
    """Defaults of every option of every command, and what it takes."""
    from scalelab.cli import COMMANDS as ALL
    from scalelab.cli import command_parser

    found = {}
    for name in ALL:
        actions = command_parser(name)[0]._actions[1:]
        found[f"scalelab {name}"] = {
            " ".join(one.option_strings) or one.dest: f"{one.default!r}"
            + (f" of {getattr(one.type, '__name__', one.type)}" if one.type else "")
            + (f", {one.nargs}" if one.nargs is not None else "")
            + (f", const {one.const!r}" if one.const is not None else "")
            + (f", one of {', '.join(map(str, one.choices))}" if one.choices else "")
            + (", required" if one.required else "")
            for one in actions
        }
    return found


def _settings() -> dict[str, Any]:
    """Defaults of every field of every class of an experiment, and what it takes."""
    from scalelab.experiment.lab import LAB

    return {
        name: {
            field: f"{one.default() if one.default else 'bind it'!r}; {_WORDY.sub('', str(one.hint))}"
            for field, one in LAB.parameters(cls).items()
        }
        for name, cls in LAB.classes.items()
    }


def _page() -> dict[str, Any]:
    """Data that a page asks for, of made-up runs and of recorded ones."""
    from pathlib import Path

    from starlette.testclient import TestClient

    from scalelab.kept import Kept
    from scalelab.view.lab import Lab
    from scalelab.view.page import page_html
    from scalelab.view.server import Refresher, make_app

    found: dict[str, Any] = {}
    asked = (
        "curves?groups=0,1", "comparison?task=math", "pair?first=r0,r1&second=r2", "between?first=r0&second=r1",
        "run/r0", "run/r2", "now/r0", "steps/r0", "completions/r0?limit=3",
        "completions/r0?outcome=failed&task=code&step=80", "completions/r0?text=more&offset=2&limit=2",
        "prompt/r0?task=math&prompt=math/1", "prompts/r0?task=math", "prompts/r0?first=0&second=150",
        "completion/r0?row=none",
    )  # fmt: skip
    for sources in (["page"], ["recorded/scalerl", "recorded/magistral"]):
        lab = Lab([Path(source) for source in sources], kept=Kept(None))
        lab.update()
        found[f"head of the page of {' '.join(sources)}"] = page_html(lab, live=True).partition("<body>")[0]
        found[f"overview of {' '.join(sources)}"] = lab.overview()
        refresher = Refresher(lab)
        client = TestClient(make_app(refresher), base_url="http://127.0.0.1:8765")
        for question in asked if sources == ["page"] else ("steps/r0", "completions/r0?limit=2"):
            answer = client.get(f"/api/{question}")
            value: Any = answer.json() if answer.is_success else answer.text
            if question.startswith("pair"):
                del value["curves"]  # those of `curves`
            found[f"{answer.status_code} {question}"] = value
        refresher.fitting.close()
    return found


SUBJECTS: dict[str, tuple[str, ...] | Data] = {
    **COMMANDS,
    "options": _options,
    "settings": _settings,
    "page": _page,
    "states": states,
    "runs": runs,
    "evaluations": evaluations,
}
