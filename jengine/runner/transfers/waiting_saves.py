"""KV saves that wait until earlier plans in the pipeline have written the blocks.

In: the saves of plans, in their order, each with the step that it follows. Out: copies that are
queued, in the same order, once that step has left the last stage of a pipeline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jengine.plan import BlockCopies
from jengine.runner.runner import StepHandle


@dataclass
class WaitingSaves:
    """The saves of one plan."""

    after: StepHandle | None  # the step of the plan, or the last one before it; None: there is none
    copies: Sequence[BlockCopies]
    is_settled: bool = False  # queued, or dropped

    @property
    def may_run(self) -> bool:
        """Whether all programs that write the blocks are queued."""
        return self.after is None or self.after.has_left


class SaveQueue:
    """Pending saves of plans in the pipeline; without a pipeline nothing waits.

    A plan's blocks are pinned until it is committed, and it is not committed before its saves are
    queued: no later plan writes the blocks in between.
    """

    def __init__(self, save: Callable[[BlockCopies], None]) -> None:
        self._save = save
        self._waiting: deque[WaitingSaves] = deque()

    def add(self, after: StepHandle | None, copies: Sequence[BlockCopies]) -> WaitingSaves:
        """Queue these copies once that step has passed the last stage."""
        added = WaitingSaves(after, copies)
        self._waiting.append(added)
        self.run()
        return added

    def run(self) -> None:
        """Dispatch the copies whose steps are dispatched; the device runs them after these."""
        while self._waiting and self._waiting[0].may_run:
            saves = self._waiting.popleft()
            for copies in saves.copies:
                self._save(copies)
            saves.is_settled = True

    def drop(self) -> None:
        """Discard pending saves: their plans are forgotten, so their blocks are no longer
        pinned."""
        while self._waiting:
            self._waiting.popleft().is_settled = True
