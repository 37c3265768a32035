"""The one table of data sets: where each lives on the Hugging Face hub and in a local folder, and how its rows read.

Every set is read at the commit in `REVISIONS`, so that a run means the same problems wherever and whenever it is made.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from tasks.code.formats import LEETCODE_PACKAGES
from tasks.data.formats import (
    RowReader,
    read_deepcoder,
    read_humaneval,
    read_leetcode,
    read_livecodebench,
    read_math,
    read_mbpp,
)
from tasks.errors import TaskError


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        hub: repository on the hub.
        kind: which verifier grades it.
        use: `train`, or `eval` for sets that nothing may be trained on.
        read: row → problem and gold; a `RowError` for rows without a usable answer.
        local: file below a local folder that holds the same rows.
        split: split on the hub.
        configs: configurations to join; None is the default one.
        files: files to read instead of a configuration, for repositories with a loading script.
        packages: modules beyond the standard library that answers may import.
        columns: of a Parquet file, the ones to read; empty is all.
        problems: of a set for evaluation, as a plan needs to know without its data; None where nobody counted.
    """

    hub: str
    kind: Literal["math", "code"]
    use: Literal["train", "eval"]
    read: RowReader
    local: str
    split: str = "train"
    configs: tuple[str | None, ...] = (None,)
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    problems: int | None = None


REVISIONS: dict[str, str] = {
    "POLARIS-Project/Polaris-Dataset-53K": "296f8e34132e63f4a1d70e0dcc8bddebb43f03e4",
    "agentica-org/DeepScaleR-Preview-Dataset": "b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
    "BytedTsinghua-SIA/DAPO-Math-17k": "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    "openai/gsm8k": "740312add88f781978c0658806c59bc2815b9866",
    "EleutherAI/hendrycks_math": "21a5633873b6a120296cce3e2df9d5550074f4a3",
    "agentica-org/DeepCoder-Preview-Dataset": "177913a7bd43791646ef6a43645caa3c871ab3db",
    "newfacade/LeetCodeDataset": "215604aeed660029df7de2fea5a4d7b6ed476a08",
    "google-research-datasets/mbpp": "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
    "openai/openai_humaneval": "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
    "HuggingFaceH4/aime_2024": "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
    "math-ai/aime25": "563bb8404243c5f09de6ec262f2db674fe5bce9b",
    "HuggingFaceH4/MATH-500": "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    "livecodebench/code_generation_lite": "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
}
"""Repository on the hub → commit. One that is missing here is pinned by its first use (`tasks.data.loading.pinned`)."""

_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)

SOURCES: dict[str, Source] = {
    # Training sets
    "polaris_53k": Source("POLARIS-Project/Polaris-Dataset-53K", "math", "train", read_math, "polaris/train.jsonl"),
    "deepscaler": Source(
        "agentica-org/DeepScaleR-Preview-Dataset", "math", "train", read_math, "deepscaler/train.json"
    ),
    "dapo_17k": Source("BytedTsinghua-SIA/DAPO-Math-17k", "math", "train", read_math, "dapo/train.parquet"),
    "gsm8k": Source("openai/gsm8k", "math", "train", read_math, "gsm8k/train.jsonl", configs=("main",)),
    "math": Source("EleutherAI/hendrycks_math", "math", "train", read_math, "math/train.json", configs=_MATH_SUBJECTS),
    "deepcoder": Source(
        "agentica-org/DeepCoder-Preview-Dataset",
        "code",
        "train",
        read_deepcoder,
        "deepcoder/train.jsonl",
        configs=("primeintellect", "taco", "lcbv5"),
    ),
    "leetcode": Source(
        "newfacade/LeetCodeDataset",
        "code",
        "train",
        read_leetcode,
        "leetcode/train.jsonl.gz",
        packages=LEETCODE_PACKAGES,
    ),
    "mbpp": Source("google-research-datasets/mbpp", "code", "train", read_mbpp, "mbpp/train.jsonl", configs=("full",)),
    # Evaluation sets
    "gsm8k_test": Source(
        "openai/gsm8k", "math", "eval", read_math, "gsm8k/test.jsonl", split="test", configs=("main",), problems=1319
    ),
    "humaneval": Source(
        "openai/openai_humaneval",
        "code",
        "eval",
        read_humaneval,
        "humaneval/HumanEval.jsonl.gz",
        split="test",
        problems=164,
    ),
    "code_contests": Source(
        "agentica-org/DeepCoder-Preview-Dataset",
        "code",
        "eval",
        read_deepcoder,
        "code_contests/test.json",
        split="test",
        configs=("codeforces",),
    ),
    "aime_24": Source("HuggingFaceH4/aime_2024", "math", "eval", read_math, "aime/aime24.parquet", problems=30),
    "aime_25": Source("math-ai/aime25", "math", "eval", read_math, "aime/aime25.jsonl", split="test", problems=30),
    "math_500": Source(
        "HuggingFaceH4/MATH-500", "math", "eval", read_math, "math/test500.jsonl", split="test", problems=500
    ),
    "livecodebench": Source(
        "livecodebench/code_generation_lite",
        "code",
        "eval",
        read_livecodebench,
        "livecodebench/test.jsonl",
        split="test",
        files=("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl"),
    ),
}


def source(name: str) -> Source:
    """The table's row for a data set.

    Raises:
        TaskError: there is none of that name.
    """
    if name not in SOURCES:
        near = difflib.get_close_matches(re.sub(r"\W", "_", name.lower()), SOURCES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(SOURCES)}"
        raise TaskError(f"unknown data set {name!r}: {hint}")
    return SOURCES[name]
