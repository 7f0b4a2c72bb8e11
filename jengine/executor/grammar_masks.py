"""An executor around another one, which gives plans the token masks of their grammars.

In: plans with grammars in their new rows. Out: the same plans with masks; outputs in which tokens
that a grammar refuses are marked. It is the outermost executor, so that recordings, and other
processes that run the plan, have the masks. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jengine.executor.protocol import Executor, PendingOutput, WorkerHealth
from jengine.grammar.rows import GrammarRows, MaskedEntry, followed
from jengine.outputs import StepOutput
from jengine.plan import Plan


class MaskedOutput:
    """A queued step with tokens that matchers are waiting for."""

    __slots__ = ("_entries", "_pending")

    def __init__(self, pending: PendingOutput, entries: Sequence[MaskedEntry]) -> None:
        self._pending = pending
        self._entries = entries

    @property
    def ready(self) -> bool:
        """Whether `result` returns without waiting."""
        return self._pending.ready

    @property
    def has_left(self) -> bool:
        """Whether nothing more has to be queued before it can be read."""
        return self._pending.has_left

    def result(self) -> StepOutput:
        """Wait for the step, and advance the matchers by its tokens. Called once."""
        return followed(self._pending.result(), self._entries)


class GrammarMasks:
    """Fills masks before a plan is submitted."""

    def __init__(self, executor: Executor, rows: GrammarRows) -> None:
        self.executor = executor
        self._rows = rows

    def submit(self, plan: Plan) -> PendingOutput:
        """Queue the plan's step, with masks where its rows have a grammar."""
        plan, entries = self._rows.mask(plan)
        pending = self.executor.submit(plan)
        return MaskedOutput(pending, entries) if entries else pending

    def update_weights(self, values: Any) -> None:
        """Use these parameters for later plans."""
        self.executor.update_weights(values)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """The result of a call in every worker."""
        return self.executor.call_workers(method, arguments)

    def health(self) -> list[WorkerHealth]:
        """The health of every worker."""
        return self.executor.health()

    def shutdown(self) -> None:
        """Shut the executor down."""
        self.executor.shutdown()
