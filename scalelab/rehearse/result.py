"""Results of a rehearsal by role, in the form that `--json` prints; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

GIB = 2**30


@dataclass
class Phase:
    """One phase of a role's rehearsal.

    Attributes:
        name: such as "build", "load", "step", "export".
        ok: whether it went through.
        seconds: it took here.
        peak_gib: most device memory during it.
    """

    name: str
    ok: bool
    seconds: float
    peak_gib: float = 0.0


@dataclass
class RoleResult:
    """The result of one role.

    Attributes:
        role: its name.
        kind: "tuner", "trainer", "engine", "verifier" or "cluster".
        stands_for: ranks that it stands for; nodes, for "cluster".
        phases: in order; those after one that failed are missing.
        memory_gib: by kind, when the role's memory was fullest.
        plan_memory_gib: the plan's, by the same kinds.
        flops: of one micro-batch, forward and backward, recomputation included.
        plan_flops: the plan's, for the same rows.
        longest_row: tokens of the longest sequence that went through.
        micro_batches: of a rank's step, for which `collectives` are; 0 for others than trainers and tuners.
        collectives: exchanges of one optimiser step: group, op, calls, bytes.
        publication: exchanges among trainer ranks for one publication of weights, in the same form.
        problems: why the role cannot run; none if it can.
        replaced: settings of the run in whose place others were rehearsed, and why; with its own the role may break.
        not_rehearsed: what else was left out, and why.
        late: whether it was ended at its deadline, so that nobody knows if it can run.
    """

    role: str
    kind: str
    stands_for: int = 1
    phases: list[Phase] = field(default_factory=list)
    memory_gib: dict[str, float] = field(default_factory=dict)
    plan_memory_gib: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    plan_flops: float = 0.0
    longest_row: int = 0
    micro_batches: int = 0
    collectives: list[dict[str, Any]] = field(default_factory=list)
    publication: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    not_rehearsed: list[str] = field(default_factory=list)
    late: bool = False

    @property
    def ok(self) -> bool:
        """True if all phases went through, with the run's own settings."""
        return not self.problems and not self.replaced

    @property
    def verdict(self) -> str:
        """The role's end in two words at most; a star where something was not rehearsed, for which it says nothing."""
        if self.late:
            return "not done"
        if self.problems:
            return "breaks"
        return "in part" if self.replaced else "ok*" if self.not_rehearsed else "ok"

    @property
    def peak_gib(self) -> float:
        """Most device memory in any phase."""
        return max((phase.peak_gib for phase in self.phases), default=0.0)

    @property
    def plan_gib(self) -> float:
        """The plan's total, without what it reserves."""
        return sum(self.plan_memory_gib.values())

    def to_json(self) -> dict[str, Any]:
        """The role's entry in the output of `--json`."""
        judged = {"ok": self.ok, "verdict": self.verdict}
        return {**asdict(self), **judged, "peak_gib": self.peak_gib, "plan_gib": self.plan_gib}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RoleResult:
        """Read the result that `to_json` wrote."""
        fields = {
            name: value for name, value in values.items() if name not in ("ok", "verdict", "peak_gib", "plan_gib")
        }
        return cls(**{**fields, "phases": [Phase(**phase) for phase in values["phases"]]})


def differences(result: RoleResult) -> Iterator[tuple[str, float]]:
    """Relative differences between rehearsal and plan: total memory and FLOPs."""
    for name, found, planned in (
        ("memory", result.peak_gib, result.plan_gib),
        ("FLOPs", result.flops, result.plan_flops),
    ):
        if found and planned:
            yield name, found / planned - 1
