"""Let vLLM's engines for NCCL run on a computer without a GPU: real bytes through a small library over sockets.

What is replaced: NCCL's library (`nccl_sockets.c`), and torch's streams and current device, which there are none of.
vLLM's communicator, its transfer engines and their messages are the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from scalelab.cluster import trainer_ranks
from scalelab.cluster.engine_actor import EngineActor
from scalelab.cluster.trainer_ranks import TrainerRank
from scalelab.rollout.types import Request

SOURCE = Path(__file__).with_name("nccl_sockets.c")
MESSAGE, PARCEL = 2**18, 2**14
"""Bytes of which a small model takes several messages, and each rank's rows of its vocabulary several parcels."""
PACE = 20
"""Steps of an engine with one version, while it is held back."""


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "libnccl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


class Stream:
    """A stream on which everything is done at once."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Do nothing."""


def stand_in() -> None:
    """Replace what is missing in this process; `VLLM_NCCL_SO_PATH` names the library."""
    assert "VLLM_NCCL_SO_PATH" in os.environ
    import torch
    from vllm.utils import torch_utils

    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment]
    torch.accelerator.current_device_index = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.accelerator.synchronize = lambda device=None: None  # type: ignore[assignment]
    torch_utils._StreamPlaceholder.cuda_stream = 0  # type: ignore[attr-defined]


class StandInRank(TrainerRank):
    """A trainer rank that broadcasts without a GPU."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        trainer_ranks.PARCEL = PARCEL
        if args[2] == 0:  # the one that sends
            stand_in()
            from scalelab.transfer import broadcast

            broadcast.MESSAGE, broadcast.PARCEL = MESSAGE, PARCEL


class DyingPeer:
    """An engine's process that joins a group, receives a byte, and dies."""

    def join_broadcasts(self, init_info: dict[str, Any]) -> None:
        """Meet the others."""
        stand_in()
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        where = (init_info["master_address"], init_info["master_port"])
        self._group = stateless_init_process_group(*where, init_info["rank_offset"], init_info["world_size"], "cpu")

    def receive_weights(self, key: str, version: int, update_info: Any) -> None:
        """Die in the middle of the first message."""
        import torch

        self._group.broadcast(torch.empty(1, dtype=torch.uint8), src=0)
        os._exit(1)

    def leave_broadcasts(self) -> None:
        """Do nothing."""


def _stand_in_at(worker: Any, stand_in: Callable[[], None]) -> None:
    stand_in()


def _parameters(worker: Any) -> dict[str, Any]:
    model = worker.model_runner.get_model()
    found = {name: one.detach().clone() for name, one in model.named_parameters()}
    for name, one in model.named_modules():
        if hasattr(one, "expert_bias_E"):
            found[f"{name}.expert_bias"] = one.expert_bias_E.clone()
        if hasattr(one, "cpu_linear") and hasattr(one, "input_size_per_partition"):  # which holds the weights packed
            import torch

            found[f"{name}.product"] = one.cpu_linear(torch.eye(one.input_size_per_partition), one.weight, None)
    return found


def _hold_back(engine: Any) -> None:
    """Let an engine step no more than `PACE` times with one version; what it is told to do between steps goes on."""
    step, made = engine.step, Counter[int]()

    def held() -> list[Any]:
        if made[engine.version] == PACE:
            time.sleep(0.005)
            return []
        made[engine.version] += 1
        return step()

    engine.step = held


def _let_go(engine: Any) -> None:
    vars(engine).pop("step", None)


class StandInEngine(EngineActor):
    """An engine that receives without a GPU, and shows its parameters."""

    stand_in = staticmethod(stand_in)

    def __init__(self, *args: Any) -> None:
        from scalelab.rollout import engine  # noqa: F401 - sets vLLM's environment first

        self.stand_in()
        super().__init__(*args)
        # An engine on several devices has processes of its own.
        self._in_workers(_stand_in_at, self.stand_in)

    def fly(self, requests: list[Request]) -> None:
        """Start generating, `PACE` steps with each version until `land`: completions outlast several versions."""
        self._generator._call(_hold_back, 60, "its steps to be held back")
        self.submit(requests)

    def land(self) -> None:
        """Let completions come to their ends."""
        self._generator._call(_let_go, 60, "its steps to be let go")

    def stats(self) -> dict[str, float]:
        """The engine's counters."""
        return self._generator.stats()

    def parameters(self) -> dict[str, Any]:
        """The parameters that the engine computes with, of all its processes."""
        found = self._in_workers(_parameters)
        return {f"{rank} {name}": one for rank, part in enumerate(found) for name, one in part.items()}

    def _in_workers(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        answers: list[Any] = []

        def ask(engine: Any) -> None:
            answers.extend(engine._engine.collective_rpc(function, args=args))

        self._generator._call(ask, 60, "the workers")
        return answers


def run_with(arguments: list[str], rank: type, engine: type) -> int:
    """Run the command line with weights broadcast, which a configuration refuses on cores."""
    from scalelab.cli import main as command_line
    from scalelab.cluster import engines, world

    class SendingRun(world.ClusterRun):
        def __init__(self, run: Any, *others: Any) -> None:
            object.__setattr__(run.cluster, "publication", "nccl")
            super().__init__(run, *others)

    trainer_ranks.TrainerRank, engines.EngineActor = rank, engine  # type: ignore[misc, assignment]
    world.ClusterRun = SendingRun  # type: ignore[misc, assignment]
    return command_line(arguments)


def main(arguments: list[str]) -> int:
    """Run the command line with broadcasts on cores: `python -m tests.helpers.nccl_stand_in run quickstart …`."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VLLM_NCCL_SO_PATH"] = str(build(Path(folder)))
        return run_with(arguments, StandInRank, StandInEngine)


if __name__ == "__main__":
    from tests.helpers import nccl_stand_in  # whose classes actors can import

    sys.exit(nccl_stand_in.main(sys.argv[1:]))
