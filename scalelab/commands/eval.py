"""Evaluate a model on held-out prompts: mean@k and pass@k with standard errors over prompts.

CHECKPOINT is a Hugging Face folder, a checkpoint of a run (runs/NAME/checkpoints/step_000100), or the folder of a run.
Of a run, every checkpoint (or those of --steps) is evaluated on the sets that --set binds, and the points join its
curves. A task is one of:
  a task of the run, by its name;
  a data set of the table in docs/tasks.md (gsm8k, math_500, livecodebench, …), from the hub or from the folder of
  --data;
  a class, with --set for its fields: my_task.Reverse of my_task.py in this folder, or ReasoningGym.
Prompts of a run's checkpoint look as in training. Those of a Hugging Face folder use its chat template (--ask plain for
models without one), and its whole answer is graded, unless --think opens a <think> for it.

A run with classes of your own names their files in its config.gin. An evaluation imports them, which runs their code:
give --trust if they are yours.

Examples:
  scalelab eval runs/quickstart/checkpoints/step_000150
  scalelab eval runs/quickstart/checkpoints/step_000150 --task math --k 4
  scalelab eval runs/scalerl_8b --set 'Evaluation.sets=(@Benchmark(),)' --set Benchmark.data=gsm8k_test --steps 100 150
  scalelab eval models/SmolLM2-135M-Instruct --task gsm8k --prompts 100
  scalelab eval models/SmolLM2-135M-Instruct --task my_task.Reverse --set my_task.Reverse.letters=7
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.commands.arguments import add_json, add_sets, check_out
from scalelab.errors import LabError, UntrustedError

if TYPE_CHECKING:
    from scalelab.run.config import Run
    from scalelab.session.evaluate_model import TaskScores
    from tasks.task import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="a Hugging Face folder, a run's step_N, or a run"
    )
    parser.add_argument("--task", dest="tasks", nargs="+", metavar="NAME", help="tasks to evaluate; default: the run's")
    add_sets(parser, "a field of a --task that is a class, or of a run's evaluation sets; may be repeated")
    parser.add_argument("--steps", type=int, nargs="+", metavar="N", help="of a run: the checkpoints (default: all)")
    parser.add_argument("--trust", action="store_true", help="import the classes of your own that the run names")
    parser.add_argument("--data", metavar="DIR", help="folder of local data sets; default: the hub")
    parser.add_argument("--k", type=int, help="completions of each prompt; default: the run's, else 1")
    parser.add_argument("--prompts", type=int, help="held-out prompts per task; default: the run's, else all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--max-tokens", type=int, help="most tokens of a completion; default: the run's, else 1024")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature; 0 is greedy")
    parser.add_argument("--ask", choices=("chat", "plain"), help="form of a data set's prompts")
    think = "open <think> and grade what follows </think>"
    parser.add_argument("--think", action=argparse.BooleanOptionalAction, help=think)
    parser.add_argument("--out", type=Path, metavar="FILE", help="all completions with their verdicts, JSON lines")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Check everything that needs no engine, then generate and grade."""
    for name, least in (("k", 1), ("prompts", 2), ("max_tokens", 1), ("seed", 0), ("temperature", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise LabError(f"--{name.replace('_', '-')} is {value}: give at least {least}")
    if args.temperature == 0 and (args.k or 1) > 1:
        raise LabError("--temperature 0 gives the same completion k times: leave --k out, or sample")
    if args.out is not None:
        check_out(args.out)
    from scalelab.session.native_output import without_library_warnings
    from scalelab.store.places import holds_run

    with without_library_warnings():
        evaluate = _evaluate_run if holds_run(args.checkpoint) else _evaluate_checkpoint
        evaluate(args)


def _evaluate_checkpoint(args: argparse.Namespace) -> None:
    """Evaluate one model on tasks."""
    if args.steps:
        raise LabError("--steps names checkpoints of a run's folder; give runs/NAME in place of one checkpoint")
    from scalelab.session.evaluate_model import EvaluationRequest, evaluate_model
    from scalelab.start.model_folder import config_of, find_model
    from scalelab.virtual.cluster import take_arithmetic

    config = config_of(args.checkpoint)
    model = find_model(args.checkpoint, _run_of(config, args.trust) if config else None)
    tasks = args.tasks or [task.name for task in model.run.tasks] if model.run else args.tasks
    if not tasks:
        raise LabError(f"{args.checkpoint} belongs to no run: name its tasks, such as --task gsm8k")
    if model.run is not None:
        take_arithmetic(model.run)
    asked = EvaluationRequest(
        tasks=_tasks(tuple(dict.fromkeys(tasks)), args.sets, model.run),
        data=args.data,
        k=args.k,
        prompts=args.prompts,
        seed=args.seed,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        chat=None if args.ask is None else args.ask == "chat",
        think=args.think,
    )
    _report(args, evaluate_model(model, asked, args.out))


def _evaluate_run(args: argparse.Namespace) -> None:
    """Evaluate the checkpoints of a run on further sets, which `--set` binds."""
    from scalelab.commands.output import print_json, print_table
    from scalelab.experiment import resolve
    from scalelab.session.evaluate_run import evaluate_run
    from scalelab.virtual.cluster import take_arithmetic
    from scalelab.watch.progress import Progress

    exclusive = {
        "tasks": "task",
        "data": "data",
        "k": "k",
        "prompts": "prompts",
        "max_tokens": "max-tokens",
        "ask": "ask",
    }
    given = [option for name, option in exclusive.items() if getattr(args, name) is not None]
    if given or args.out is not None or args.think is not None or args.seed or args.temperature != 1.0:
        raise LabError(
            f"--{given[0] if given else 'seed, --temperature, --think or --out'} is for one checkpoint; the sets "
            "of a run say such things by --set, such as --set Benchmark.samples=8"
        )
    try:
        resolved = resolve(str(args.checkpoint / "config.gin"), args.sets, imports=args.trust)
    except UntrustedError as error:
        raise LabError(f"{error}; if it is yours, add --trust") from None
    take_arithmetic(resolved.run)
    with Progress() as progress:
        lines = evaluate_run(args.checkpoint, resolved, args.steps, progress)
    if args.json:
        print_json({"run": str(args.checkpoint), "evaluations": lines})
        return
    rows = []
    for one in lines:
        best = one["metrics"].get(f"pass@{one['k']}", one["metrics"]["passed"])["value"]
        mean = f"{one['pass_rate']:.3f} ± {one['stderr']:.3f}"
        counts = [str(one["n_prompts"]), str(one["k"])]
        rows.append([str(one["step"]), one["task"], *counts, mean, f"{best:.3f}", f"{one['mean_length']:.0f}"])
    print_table(rows, ["step", "task", "prompts", "k", "mean@k", "pass@k", "tokens"])


def _run_of(config: Path, trust: bool) -> Run:
    """The run of a checkpoint; its own classes are imported only where the user trusts them."""
    from scalelab.experiment import resolve

    try:
        run: Run = resolve(str(config), imports=trust).run
    except UntrustedError as error:
        raise LabError(f"{error}; if it is yours, add --trust") from None
    return run


def _tasks(names: tuple[str, ...], sets: list[str], run: Run | None) -> tuple[str | Task, ...]:
    """The tasks by name, those that are named by their class made."""
    from scalelab.experiment.single_tasks import is_class_name, single_tasks

    of_run = {task.name for task in run.tasks} if run else set()
    classes = [name for name in names if name not in of_run and is_class_name(name)]
    if sets and not classes:
        raise LabError("--set is for tasks that are named by their class, such as --task ReasoningGym")
    made = dict(zip(classes, single_tasks(classes, sets))) if classes else {}
    return tuple(made.get(name, name) for name in names)


def _report(args: argparse.Namespace, scores: list[TaskScores]) -> None:
    from scalelab.commands.output import print_json, print_table

    if args.json:
        tasks = {one.task: one.record() for one in scores}
        print_json({"checkpoint": str(args.checkpoint), "seed": args.seed, "tasks": tasks})
        return
    rows = []
    for one in scores:
        best = max(one.pass_at_k)
        rows.append(
            [
                one.task,
                str(one.evaluation.n_prompts),
                str(one.evaluation.k),
                _shown(one.mean_at_k, "mean_at_k"),
                f"{_shown(one.pass_at_k[best], 'pass_at_k')} (k = {best})",
                f"{one.evaluation.truncated:.1%}",
                f"{one.evaluation.mean_length:.0f}",
                ", ".join(f"{count} {outcome}" for outcome, count in one.evaluation.outcomes.items()),
            ]
        )
    print_table(rows, ["task", "prompts", "k", "mean@k", "pass@k", "truncated", "tokens", "outcomes"])


def _shown(score: dict[str, Any], name: str) -> str:
    return f"{score[name]:.3f} ± {score['stderr']:.3f}"
