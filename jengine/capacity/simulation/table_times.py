"""Seconds per step by a measured table, which `jengine bench growth --step-table` writes.

In: JSON with the limits of an engine, its cache, and steps of so many decodes and prompt tokens at
a context. Out: StepTimes, and a replica like that engine. Times between measured ones are linear in
each direction; beyond the last ones they grow as between the last two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jengine.capacity.simulation.replica import ReplicaKind
from jengine.capacity.simulation.step_times import StepLoad, stepwise
from jengine.config import CacheConfig, ScheduleConfig
from jengine.errors import ConfigError

KIND = "steps"


class StepTable(msgspec.Struct, frozen=True):
    """An engine's limits and its steps."""

    bench: str
    model: str
    schedule: ScheduleConfig
    cache: CacheConfig
    depth: int
    token_bytes: int
    decode_rows: list[int]  # each axis of the grid begins with what is 0 or least
    prefill_tokens: list[int]
    contexts: list[int]
    # By decode rows, prefill tokens and context; nothing runs in a step of 0 and 0.
    seconds: list[list[list[float]]]
    # What a step takes longer for which nothing was queued before: the host's work is not hidden.
    idle_seconds: float = 0.0


def read_table(file: Path) -> StepTable:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=StepTable)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--table {str(file)!r}: expected what bench growth --step-table wrote: {error}"
        ) from error
    shape = (len(found.decode_rows), len(found.prefill_tokens), len(found.contexts))
    if found.bench != KIND or np.shape(found.seconds) != shape or min(shape) < 1:
        raise ConfigError(
            f"--table {str(file)!r}: expected a table of steps by {shape[0]} numbers of decodes, "
            f"{shape[1]} of prompt tokens and {shape[2]} contexts."
        )
    return found


def table_kind(table: StepTable) -> ReplicaKind:
    """A replica like the engine that was measured."""
    times = TableTimes.of(table)
    return ReplicaKind(
        table.schedule,
        table.cache,
        times,
        table.depth,
        token_bytes=table.token_bytes,
        idle_seconds=table.idle_seconds,
    )


@dataclass
class TableTimes:
    """Times of a grid."""

    axes: tuple[Sequence[int], Sequence[int], Sequence[int]]
    seconds_at: Any  # nested lists
    # By decode rows: seconds of a step without prompts at each context.
    _decodes: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: StepTable) -> TableTimes:
        """The times of a table."""
        return cls((table.decode_rows, table.prefill_tokens, table.contexts), table.seconds)

    def seconds(self, load: StepLoad) -> float:
        """Time of a step, interpolated at the mean context of its tokens."""
        tokens = load.decode_rows + load.prefill_tokens
        context = (load.decode_context + load.prefill_start) / tokens
        return self._at(self._column(load.decode_rows, load.prefill_tokens), context)

    def ends(self, load: StepLoad, at: float, runs: int, until: float) -> list[float]:
        """Decodes alone differ in their context only."""
        if load.prefill_tokens:
            return stepwise(self, load, at, runs, until)
        rows, context, ends = load.decode_rows, load.decode_context, []
        column = self._column(rows, 0)
        while len(ends) < runs and at <= until:
            at += self._at(column, context / rows)
            ends.append(at)
            context += rows
        return ends

    def _column(self, rows: int, prefill: int) -> list[float]:
        """Seconds at each context."""
        known = self._decodes.get(rows) if not prefill else None
        if known is not None:
            return known
        found = [0.0] * len(self.axes[2])
        for i, a in weights(self.axes[0], rows):
            for j, b in weights(self.axes[1], prefill):
                if share := a * b:
                    for k, seconds in enumerate(self.seconds_at[i][j]):
                        found[k] += share * seconds
        if not prefill:
            self._decodes[rows] = found
        return found

    def _at(self, column: list[float], context: float) -> float:
        """A time of a column, which extrapolation never makes negative."""
        contexts = self.axes[2]
        if len(contexts) == 1:
            return max(column[0], 0.0)
        above = min(max(bisect_right(contexts, context), 1), len(contexts) - 1)
        low, high = contexts[above - 1], contexts[above]
        first, last = column[above - 1], column[above]
        total = first + (context - low) / (high - low) * (last - first)
        return total if total > 0.0 else 0.0


def weights(axis: Sequence[int], value: float) -> list[tuple[int, float]]:
    """The two points around a value and their shares; beyond the axis, those of its end."""
    if len(axis) == 1:
        return [(0, 1.0)]
    above = min(max(bisect_right(axis, value), 1), len(axis) - 1)
    low, high = axis[above - 1], axis[above]
    share = (value - low) / (high - low)
    return [(above - 1, 1 - share), (above, share)]
