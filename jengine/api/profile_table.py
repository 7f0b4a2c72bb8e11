"""A recorded profile as a table of operations by self time, without TensorBoard.

In: the folder of a JAX profiler trace. Out: operations by self time on the devices, or on a CPU's
threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from jengine.errors import RequestError
from jengine.metrics.cost import StepCost

SHOWN = 20
# Trace lines that summarise other lines.
SUMMARIES = ("XLA Modules", "Steps", "Framework", "Source", "XLA TraceMe")


@dataclass(frozen=True)
class Operation:
    """All calls of one operation."""

    name: str
    calls: int
    seconds: float  # self time


@dataclass(frozen=True)
class ProfileTable:
    """Profile of some steps of an engine."""

    folder: str
    steps: int
    seconds: float  # wall-clock time of all steps
    cost: StepCost  # estimated, per device
    operations: tuple[Operation, ...]  # the longest first

    @property
    def busy(self) -> float:
        """Total self time of all operations, over all devices or threads."""
        return sum(one.seconds for one in self.operations)

    def __str__(self) -> str:
        step, bytes_moved = self.seconds / self.steps, self.cost.read + self.cost.written
        lines = [
            f"{self.steps} steps of {step * 1e3:.2f} ms; estimated "
            f"{self.cost.operations / self.seconds / 1e12:.3f} TFLOP/s and "
            f"{bytes_moved / self.seconds / 1e9:.2f} GB/s per device",
            f"{'operation':<56} {'calls':>7} {'ms':>9} {'share':>6}",
        ]
        for one in self.operations[:SHOWN]:
            share = one.seconds / self.busy
            lines.append(
                f"{one.name[:56]:<56} {one.calls:>7} {one.seconds * 1e3:>9.3f} {share:>6.1%}"
            )
        if len(self.operations) > SHOWN:
            rest = sum(one.seconds for one in self.operations[SHOWN:])
            lines.append(f"{len(self.operations) - SHOWN} more, {rest * 1e3:.3f} ms")
        return "\n".join([*lines, f"The whole trace is in {self.folder}"])


def operations_of(folder: str) -> tuple[Operation, ...]:
    """The operations in the newest trace of a folder."""
    files = sorted(Path(folder).glob("plugins/profile/*/*.xplane.pb"), key=written_at)
    if not files:
        raise RequestError(
            f"{folder} has no trace. Steps that run on other hosts write theirs there."
        )
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for line in lines_of(ProfileData.from_file(str(files[-1]))):
        for name, own in own_times(line.events):
            if "::" not in name:  # runtime internals, such as waiting
                seconds[name] += own
                calls[name] += 1
    found = [Operation(name, calls[name], seconds[name]) for name in seconds]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def written_at(file: Path) -> float:
    return file.stat().st_mtime


def lines_of(data: ProfileData) -> Iterator[Any]:
    """Trace lines with operations: the devices', else those of XLA's threads."""
    planes = list(data.planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for plane in devices:
        lines = list(plane.lines)
        operations = [line for line in lines if line.name == "XLA Ops"]
        yield from operations or (one for one in lines if not one.name.startswith(SUMMARIES))
    for plane in () if devices else planes:
        yield from (line for line in plane.lines if line.name.startswith("tf_XLA"))


def own_times(events: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Yield each event of a line with its self time in seconds (nested events excluded)."""
    ordered = sorted(events, key=lambda event: (event.start_ns, -event.duration_ns))
    open_events: list[list[Any]] = []  # [name, end, own nanoseconds], the innermost last
    for event in ordered:
        while open_events and open_events[-1][1] <= event.start_ns:
            name, _, own = open_events.pop()
            yield name, max(own, 0.0) / 1e9
        if open_events:
            open_events[-1][2] -= event.duration_ns
        end = event.start_ns + event.duration_ns
        open_events.append([event.name, end, event.duration_ns])
    for name, _, own in open_events:
        yield name, max(own, 0.0) / 1e9
