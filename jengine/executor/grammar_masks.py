"""An executor around another one, which gives plans the token masks of their grammars.

In: plans with grammars in their new rows. Out: the same plans with masks; outputs in which tokens
that a grammar refuses are marked. It is the outermost executor, so that recordings, and other
processes that run the plan, have the masks. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.executor.protocol import Executor, PendingOutput
from jengine.executor.read_step import ReadStep
from jengine.grammar.rows import GrammarRows
from jengine.plan import Plan


class GrammarMasks:
    """Fills masks before a plan is submitted."""

    def __init__(self, executor: Executor, rows: GrammarRows) -> None:
        self.executor = executor
        self._rows = rows
        self.update_weights, self.call_workers = executor.update_weights, executor.call_workers
        self.health, self.shutdown = executor.health, executor.shutdown

    def checked_drafts(self, row: int, guesses: Sequence[int] | None, most: int) -> list[int]:
        """The drafts, at most so many, that a row with a grammar may run in the next plan: of these
        guesses, or, without any, of those that its last step has made."""
        return self._rows.checked(row, guesses, most)

    def submit(self, plan: Plan) -> PendingOutput:
        """Queue the plan's step, with masks where its rows have a grammar."""
        plan, entries = self._rows.mask(plan)
        pending = self.executor.submit(plan)
        if not entries:
            return pending
        return ReadStep(pending, lambda step: self._rows.followed(step.result(), entries))
