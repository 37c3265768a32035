"""The work of `tasks.environments.task`'s processes, where `verifiers` is installed; imports nothing of the lab."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import Callable
from typing import Any


class UnfitError(ValueError):
    """A taskset asks for more than one answer to a prompt."""


def service(payload: bytes) -> Callable[[Any], Any]:
    """Load a taskset; returns the function that answers requests.

    `{"list": [first, count]}` → `{"rows": [{"messages", "key"}], "versions"}`, and
    `{"score": {"index", "key"}, "answer"}` → `{"scores": {name: number}, "weights": {name: number}}`, without those of
    weight 0.

    Raises:
        UnfitError: it has tools, judges, containers, a user of its own, or rewards that need a runtime.
    """
    asked = json.loads(payload)
    tasks = _tasks(asked["taskset"], asked["settings"], asked["most"])

    def answer(request: Any) -> Any:
        if "list" in request:
            first, count = request["list"]
            rows = [{"messages": _messages(task), "key": task.key} for task in tasks[first : first + count]]
            return {"rows": rows, "versions": _versions()}
        task = tasks[request["score"]["index"]]
        if task.key != request["score"]["key"]:
            raise UnfitError("the taskset gives other tasks than when its prompts were read")
        return _score(task, request["answer"])

    return answer


def _tasks(name: str, settings: dict[str, Any], most: int) -> list[Any]:
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import environment_class, load_taskset, taskset_config_type

    taskset = load_taskset(taskset_config_type(name)(id=name, **settings))
    if environment_class(name) is not vf.SingleAgentEnv:
        raise UnfitError(f"{name} has an environment of its own: only single-turn tasksets can be used")
    if type(taskset).toolsets(taskset.config):
        raise UnfitError(f"{name} has tools: only single-turn tasksets can be used")
    tasks = list(itertools.islice(taskset, most))
    if not tasks:
        raise UnfitError(f"{name} has no tasks")
    for task in tasks:
        _check(name, task, vf)
    return tasks


def _check(name: str, task: Any, vf: Any) -> None:
    rewards = task.hooks("reward")
    needing = [fn.__name__ for fn in rewards if _needs_runtime(fn)]
    kind = type(task)
    what = {
        "no prompt": task.data.prompt is None,
        "no rewards": not rewards,
        f"rewards that need a runtime ({', '.join(needing)})": bool(needing),
        "rewards of a weight below 0": any(getattr(fn, "_vf_weight", 1.0) < 0 for fn in rewards),
        "judges": bool(task.plugged_judges()),
        "tools": bool(kind.toolsets(task.config)),
        "a container": kind.NEEDS_CONTAINER or task.data.image is not None,
        "steps before or after the answer": kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize,
    }
    found = [problem for problem, there in what.items() if there]
    if found:
        raise UnfitError(
            f"a task of {name} has {found[0]}: only single-turn tasks with rewards of the text can be used"
        )


def _needs_runtime(function: Callable[..., Any]) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _messages(task: Any) -> list[dict[str, str]]:
    from verifiers.v1.types import content_text

    prompt = task.data.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
    if not isinstance(prompt, str):
        messages = [{"role": message.role, "content": content_text(message.content)} for message in prompt]
    system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
    return [*system, *messages]


def _score(task: Any, answer: str) -> dict[str, Any]:
    import verifiers.v1 as vf
    from pydantic import TypeAdapter
    from verifiers.v1.types import AssistantMessage, Message

    read = TypeAdapter(Message)
    asked = [read.validate_python(message) for message in _messages(task)]
    nodes = [
        vf.MessageNode(parent=number - 1 if number else None, message=message, sampled=number == len(asked))
        for number, message in enumerate([*asked, AssistantMessage(content=answer)])
    ]
    data = type(task.data)
    trace = vf.Trace[data](  # type: ignore[valid-type]
        task=vf.TraceTask[data](type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),  # type: ignore[valid-type]
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
    )
    asyncio.run(task.score(trace, None))
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing:
        raise UnfitError(f"no score came for {', '.join(missing)}")
    counted = {name: reward for name, reward in trace.rewards.items() if reward.weight > 0}
    return {
        "scores": {name: max(0.0, float(reward.score)) for name, reward in counted.items()},
        "weights": {name: float(reward.weight) for name, reward in counted.items()},
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"verifiers": version("verifiers")}
