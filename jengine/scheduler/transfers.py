"""Protocol by which the scheduler drives block copies between the device and other memory.

In: requests that wait, steps. Out: `Transfers` of plans. `tiered_transfers` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from jengine.counts import CopyCounts
from jengine.outputs import StepOutput
from jengine.plan import Transfers
from jengine.request import Request
from jengine.scheduler.external_hits import ExternalHits
from jengine.scheduler.recorder import Recorder


class BlockTransfers(Protocol):
    """Block copies between the device and other tiers, as the scheduler drives them."""

    @property
    def hits(self) -> ExternalHits:
        """Prompt tokens whose blocks were loaded from outside the device."""
        ...

    @property
    def counts(self) -> CopyCounts:
        """The copies so far."""
        ...

    def use(self, recorder: Recorder, wake: Callable[[Hashable], None], rows: int) -> None:
        """Set where prompt costs are read, and how requests are woken. `rows`: the most that can
        run. Called once, before any other method."""
        ...

    def awaited(self, request: Request) -> Hashable | None:
        """Gate: the key a waiting request must be parked under; None if it has all blocks it can
        get."""
        ...

    def take(self, step: int, *, idle: bool) -> Transfers | None:
        """The transfers of the plan of this number; `idle`: it has no entries."""
        ...

    def done(self, step: int, output: StepOutput) -> None:
        """Called with each step's output."""
        ...

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The finished request's `kv_transfer_params`; None if empty."""
        ...

    def withdraw(self, *, idle: bool) -> None:
        """Take all blocks back from waiting requests; `idle`: no plan is in flight."""
        ...

    def forget(self) -> None:
        """Invalidate everything cached. No request may hold blocks."""
        ...

    def reset(self) -> None:
        """The plans in flight are forgotten."""
        ...


class NoTransfers:
    """`BlockTransfers` of an engine whose blocks stay on the device: does nothing."""

    hits = ExternalHits()
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
