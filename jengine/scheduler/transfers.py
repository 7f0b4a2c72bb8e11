"""What the scheduler asks of those who copy blocks to other memory and back.

In: requests that wait, steps. Out: `Transfers` of plans. `tiered_transfers` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from jengine.counts import CopyCounts
from jengine.outputs import StepOutput
from jengine.plan import Transfers
from jengine.request import Request
from jengine.scheduler.outside_hits import OutsideHits
from jengine.scheduler.recorder import Recorder


class BlockTransfers(Protocol):
    """What the scheduler asks for."""

    @property
    def hits(self) -> OutsideHits:
        """How much of prompts was found outside of the device."""
        ...

    @property
    def counts(self) -> CopyCounts:
        """The copies so far."""
        ...

    def use(self, recorder: Recorder, wake: Callable[[Hashable], None], rows: int) -> None:
        """Take from the recorder what prompts cost, and wake requests by `wake`, of which so many
        can run. Called once, first."""
        ...

    def awaited(self, request: Request) -> Hashable | None:
        """What a waiting request must wait for; None: it has all the blocks that it can get. As a
        gate's."""
        ...

    def take(self, step: int, *, idle: bool) -> Transfers | None:
        """The transfers of the plan of this number; `idle`: it has no entries."""
        ...

    def done(self, step: int, output: StepOutput) -> None:
        """A plan's output is there."""
        ...

    def finished(self, request: Request) -> dict[str, Any] | None:
        """A request has its whole answer: what this says of its blocks."""
        ...

    def withdraw(self, *, idle: bool) -> None:
        """No waiting request holds blocks any more; `idle`: no plan is in flight."""
        ...

    def forget(self) -> None:
        """What is cached must not be found again. No request holds blocks."""
        ...

    def reset(self) -> None:
        """The plans in flight are forgotten."""
        ...


class NoTransfers:
    """Of an engine whose blocks stay on the device. The protocol describes the methods."""

    hits = OutsideHits()
    counts = CopyCounts()

    def use(self, recorder: Recorder, wake: Callable[[Hashable], None], rows: int) -> None:
        pass

    def awaited(self, request: Request) -> Hashable | None:
        return None

    def take(self, step: int, *, idle: bool) -> Transfers | None:
        return None

    def done(self, step: int, output: StepOutput) -> None:
        pass

    def finished(self, request: Request) -> dict[str, Any] | None:
        return None

    def withdraw(self, *, idle: bool) -> None:
        pass

    def forget(self) -> None:
        pass

    def reset(self) -> None:
        pass
