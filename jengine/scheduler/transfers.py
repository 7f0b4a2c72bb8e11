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
        """Counts of copies so far."""
        ...

    def use(self, recorder: Recorder, wake: Callable[[Hashable], None], rows: int) -> None:
        """Set the source of prefill costs and the wake-up callback. `rows`: maximum running
        requests. Called once, before any other method."""
        ...

    def awaited(self, request: Request) -> Hashable | None:
        """Gate: the key to park a waiting request under; None once every block that can be loaded
        is."""
        ...

    def take(self, step: int, *, idle: bool) -> Transfers | None:
        """Transfers of the plan numbered `step`; `idle`: that plan has no entries."""
        ...

    def done(self, step: int, output: StepOutput) -> None:
        """Called with each step's output."""
        ...

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The finished request's `kv_transfer_params`; None if empty."""
        ...

    def withdraw(self, *, idle: bool) -> None:
        """Take all blocks back from waiting requests. `idle`: no plan is in flight."""
        ...

    def forget(self) -> None:
        """Invalidate all host and connector contents. No request may hold blocks."""
        ...

    def reset(self) -> None:
        """Forget the plans in flight."""
        ...


class NoTransfers:
    """Null object for engines whose blocks stay on the device."""

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
