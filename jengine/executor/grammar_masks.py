"""Structured output: wraps an executor and adds to each plan the token bitmasks of its grammars.

In: plans with grammars in their new rows. Out: the same plans with masks; outputs in which tokens
that a grammar refuses are marked. The outermost executor, so that recordings, and other processes
that run the plan, have the masks. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.executor.protocol import Executor, PendingOutput
from jengine.executor.read_step import ReadStep
from jengine.grammar.grammar_rows import GrammarRows
from jengine.plan import Plan


class GrammarMasks:
    def __init__(self, executor: Executor, rows: GrammarRows) -> None:
        self.executor = executor
        self._rows = rows
        self.update_weights, self.call_workers = executor.update_weights, executor.call_workers
        self.health, self.shutdown = executor.health, executor.shutdown

    def checked_drafts(self, row: int, given: Sequence[int] | None, most: int) -> list[int]:
        """Drafts that the row may run, at most `most`: tokens forced by its grammar, else `given`
        up to the first rejected one. None: those that the device made in the row's last step."""
        return self._rows.checked(row, given, most)

    def submit(self, plan: Plan) -> PendingOutput:
        """Add the grammars' masks to the plan and queue its step."""
        plan, entries = self._rows.mask(plan)
        pending = self.executor.submit(plan)
        if not entries:
            return pending
        return ReadStep(pending, lambda step: self._rows.followed(step.result(), entries))
