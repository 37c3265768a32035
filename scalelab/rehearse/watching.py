"""One mode of torch that shows every operator to all that follow a rehearsal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from scalelab.rehearse.collectives import Collectives
    from scalelab.rehearse.flops import Flops
    from scalelab.rehearse.memory import Memory
    from scalelab.rehearse.simulate import Answers


class Watching(TorchDispatchMode):
    """Let operators be answered, and count what they made; a mode for each of these would take more time.

    Attributes:
        answers: for operators whose result depends on numbers.
        collectives: for operations of process groups.
        memory: follows what is made.
        flops: counts products.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        collectives: Collectives | None = None,
        memory: Memory | None = None,
        flops: Flops | None = None,
    ) -> None:
        super().__init__()
        self.answers, self.collectives, self.memory, self.flops = answers, collectives, memory, flops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.collectives is not None and func.namespace == "c10d":
            made = self.collectives.run(func, args, kwargs)
        elif self.answers is not None:
            made = self.answers.run(func, args, kwargs)
        else:
            made = func(*args, **kwargs)
        if self.memory is not None:
            self.memory.follow(made)
        if self.flops is not None:
            self.flops.count(func, args, kwargs, made)
        return made
