"""Grade answers with the lab's verifiers, without a model: one verdict per line of a JSON-lines file, in its order.

Lines for math are {"id", "gold", "completion"}. Lines for code are {"id", "tests", "completion"}; docs/tasks.md
describes tests. The text after </think> is graded, or the whole completion where it has no </think>. The output repeats
the id and adds outcome (passed, failed, timeout, memory, error), reward, seconds, detail and, where a reward has them,
its parts.

A task can also be a class, with --set for its fields: my_task.Reverse of my_task.py in this folder, or ReasoningGym.
Its lines are {"id", "completion"} and what its reward reads: "gold", "prompt" (text) and "meta" (an object).

Examples:
  scalelab grade --task math --in answers.jsonl --out verdicts.jsonl
  scalelab grade --task code --in programs.jsonl --out verdicts.jsonl --packages numpy sortedcontainers
  scalelab grade --task my_task.Reverse --in answers.jsonl --out verdicts.jsonl
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from moe.durable import made_whole
from scalelab.commands.arguments import add_json, add_sets, check_out
from scalelab.errors import LabError
from scalelab.guarded import read_whole
from tasks.task import Verifier
from tasks.types import Prompt

# Lines handed to the verifiers at once: enough to keep all workers busy, few enough to hold in memory.
BATCH = 512
GOLD = {"math": "gold", "code": "tests"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--task", required=True, metavar="NAME", help="math, code, or the class of a task")
    add_sets(parser)
    parser.add_argument("--in", dest="source", required=True, type=Path, metavar="FILE", help="answers, JSON lines")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="verdicts, JSON lines")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument(
        "--packages", nargs="+", default=[], metavar="NAME", help="modules that programs may import (code)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int | None:
    """Check every line, then grade; the output file appears whole or not at all."""
    check_out(args.out)
    if args.out.exists() and args.source.exists() and args.out.samefile(args.source):
        raise LabError(f"--out {args.out} is the file of the answers: name another")
    make = _verifier(args)
    items = _read(args.source, args.task)
    verifier = make()
    outcomes: Counter[str] = Counter()
    with closing(verifier), made_whole(args.out) as partial, open(partial, "w", encoding="utf-8") as out:
        for first in range(0, len(items), BATCH):
            batch = items[first : first + BATCH]
            verdicts = verifier.verify([(prompt, completion) for _, prompt, completion in batch])
            for (identity, _, _), verdict in zip(batch, verdicts, strict=True):
                outcomes[verdict.outcome] += 1
                line: dict[str, Any] = {"id": identity, "outcome": verdict.outcome, "reward": verdict.reward}
                line |= {"seconds": verdict.seconds, "detail": verdict.detail}
                out.write(json.dumps(line | ({"parts": verdict.parts} if verdict.parts else {})) + "\n")
    _report(args, len(items), outcomes)
    return None


def _read(source: Path, task: str) -> list[tuple[Any, Prompt, str]]:
    """The identity, prompt and completion of each line."""
    items = []
    needed = f"{GOLD[task]} and " if task in GOLD else ""
    for number, line in enumerate(read_whole(source).removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            record: dict[str, Any] = json.loads(line.decode(), parse_constant=_refuse)
            identity, completion = record["id"], record["completion"]
            gold = record[GOLD[task]] if task in GOLD else record.get("gold")
            text, meta = record.get("prompt", ""), record.get("meta", {})
        except UnicodeDecodeError as error:
            raise LabError(f"{where} is not UTF-8 text ({error.reason}): convert the file") from None
        except (ValueError, TypeError, RecursionError):
            raise LabError(f"{where} is not a JSON object: write one object per line") from None
        except KeyError as error:
            raise LabError(f"{where} lacks {error}: --task {task} takes id, {needed}completion") from None
        if not isinstance(completion, str):
            raise LabError(f"{where}: completion is {type(completion).__name__}, must be a string")
        if task == "math" and (isinstance(gold, bool) or not isinstance(gold, str | int | float)):
            raise LabError(f"{where}: gold is {type(gold).__name__}, must be a string or a number")
        if not isinstance(text, str) or not isinstance(meta, dict):
            raise LabError(f"{where}: prompt must be a string and meta an object")
        items.append((identity, Prompt(f"{task}/{number}", task, text, gold, meta), completion))
    if not items:
        raise LabError(f"{source} has no lines: there is nothing to grade")
    return items


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _verifier(args: argparse.Namespace) -> Callable[[], Verifier]:
    """Check the task; return a function that makes its verifier."""
    if args.packages and args.task != "code":
        raise LabError(f"--packages is for --task code, not for {args.task}")
    if args.sets and args.task in GOLD:
        raise LabError(f"--set is for tasks that are classes, not for {args.task}")
    if args.task == "math":
        from tasks.math.verifier import MathVerifier

        return lambda: MathVerifier(workers=args.workers, whole_if_unclosed=True)
    if args.task == "code":
        from tasks.code.verifier import CodeVerifier

        packages = tuple(args.packages)
        return lambda: CodeVerifier(workers=args.workers, packages=packages, whole_if_unclosed=True)
    from scalelab.experiment.single_tasks import is_class_name, single_tasks

    if not is_class_name(args.task):
        raise LabError(f"unknown task {args.task!r}: say math, code, or a class such as my_task.Reverse")
    [task] = single_tasks([args.task], args.sets)
    if "workers" in getattr(task, "__dataclass_fields__", {}):
        task = replace(task, workers=args.workers)  # type: ignore[type-var]
    return task.verifier


def _report(args: argparse.Namespace, count: int, outcomes: Counter[str]) -> None:
    from scalelab.commands.output import print_json

    if args.json:
        print_json({"graded": count, "outcomes": dict(outcomes), "out": str(args.out)})
    else:
        print(f"{count} graded: {', '.join(f'{n} {outcome}' for outcome, n in outcomes.most_common())}; {args.out}")
