"""Counters of all API processes in shared memory.

In: this process's queue places, phase and heartbeat. Out: sums over all processes, and the worst
phase. Every number has one writer, so there is no lock; reads may be slightly stale.
"""

from __future__ import annotations

import mmap
import time
from enum import IntEnum
from pathlib import Path

from jengine.server.phase import Phase

BYTES = 8  # per number


class BoardField(IntEnum):
    """A counter that each API process has on the board."""

    TAKEN = 0  # completions that run or wait
    WAITING_TOKENS = 1  # prompt tokens without an output yet
    PHASE = 2  # index in WORST_LAST
    BEAT = 3  # milliseconds of the system's monotonic clock
    STUCK = 4  # cores that make no progress with this process's requests


# The server's phase is its processes' last one in this order.
WORST_LAST = (
    Phase.SERVING, Phase.DEGRADED, Phase.STARTING, Phase.DRAINING, Phase.STALLED, Phase.DEAD,
)  # fmt: skip


class Board:
    """Shared-memory counters of all API processes; each number has one writer."""

    def __init__(self, memory: memoryview, index: int) -> None:
        self._numbers = memory.cast("q")
        self.index = index

    @classmethod
    def alone(cls) -> Board:
        """A private board, for a server of one process."""
        return cls(memoryview(bytearray(len(BoardField) * BYTES)), 0)

    @classmethod
    def shared(cls, file: Path, index: int) -> Board:
        """Map the board's file, as process number `index`."""
        with file.open("r+b") as opened:
            return cls(memoryview(mmap.mmap(opened.fileno(), 0)), index)

    @staticmethod
    def create(file: Path, count: int) -> None:
        """Create the file for `count` processes, all in the phase "starting"."""
        board = Board(memoryview(bytearray(count * len(BoardField) * BYTES)), 0)
        for index in range(count):
            board.index = index
            board.phase = Phase.STARTING
            board.beat()
        file.write_bytes(board._numbers.tobytes())

    @property
    def count(self) -> int:
        """Number of processes."""
        return len(self._numbers) // len(BoardField)

    def add(self, field: BoardField, more: int) -> None:
        """Add to a counter of this process."""
        self._numbers[self.index * len(BoardField) + field] += more

    def note(self, field: BoardField, value: int) -> None:
        """Set a counter of this process."""
        self._numbers[self.index * len(BoardField) + field] = value

    def own(self, field: BoardField) -> int:
        """Return a counter of this process."""
        return self._numbers[self.index * len(BoardField) + field]

    def total(self, field: BoardField) -> int:
        """Sum a counter over all processes."""
        return sum(self._numbers[field :: len(BoardField)])

    @property
    def phase(self) -> Phase:
        return WORST_LAST[self.own(BoardField.PHASE)]

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.note(BoardField.PHASE, WORST_LAST.index(phase))

    def beat(self) -> None:
        """Heartbeat: this process's event loop is running."""
        self.note(BoardField.BEAT, _now())

    def worst_phase(self, silence: float) -> Phase:
        """Worst phase of all processes. One without a heartbeat for `silence` seconds counts as
        stalled; 0: never."""
        worst = max(self._numbers[BoardField.PHASE :: len(BoardField)])
        beats = [*self._numbers[BoardField.BEAT :: len(BoardField)]]
        beats[self.index] = now = _now()  # this process is running
        if silence > 0 and now - min(beats) > silence * 1000:
            worst = max(worst, WORST_LAST.index(Phase.STALLED))
        return WORST_LAST[worst]


def _now() -> int:
    return int(time.monotonic() * 1000)
