"""Merges the reported states and health of several cores into one.

In: each core's last report, and its death if it has died. Out: the same report as of a single core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from jengine.counts import Counts, together
from jengine.engine.core_state import CoreState, PartState
from jengine.errors import EngineDead
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import TokenDelta


class CoreReport(NamedTuple):
    """A core's last report, and its death if it has died."""

    index: int
    state: CoreState  # as last reported
    open_requests: int  # of this front end
    death: EngineDead | None
    retired: bool = False  # taken out of service on request

    @property
    def counts(self) -> Counts:
        """Its last counters; a dead core has nothing running or waiting."""
        if self.death is None:
            return self.state.counts
        return msgspec.structs.replace(self.state.counts, running=0, waiting=0, cache_usage=0.0)


def whole_state(parts: Sequence[CoreReport]) -> CoreState:
    """Merged state: the oldest report of the living cores, and the longest running step."""
    living = [one.state for one in parts if one.death is None]
    return CoreState(
        counts=together([one.counts for one in parts]),
        steps=sum(one.state.steps for one in parts),
        stepping=max((one.stepping for one in living), default=0.0),
        compiling=any(one.compiling for one in living),
        paused=any(one.paused for one in living),
        dropped_frames=sum(one.state.dropped_frames for one in parts),
        age=max((one.age for one in living), default=0.0),
        parts=tuple(_named(one, len(parts)) for one in parts if not one.retired),
    )


def _named(part: CoreReport, count: int) -> PartState:
    return PartState(
        name=f"core {part.index} of {count}",
        steps=part.state.steps,
        open_requests=part.open_requests,
        age=part.state.age,
        compiling=part.state.compiling,
        death=None if part.death is None else str(part.death),
    )


def whole_health(
    parts: Sequence[CoreReport], told: Mapping[int, Sequence[WorkerHealth]]
) -> list[WorkerHealth]:
    """Processes of all cores, from those that answered; the others are reported dead."""
    found: list[WorkerHealth] = []
    for part in (one for one in parts if not one.retired):
        dead = WorkerHealth(0, f"dead: {part.death}", part.state.steps, part.state.age)
        for one in told.get(part.index, [dead]):
            where = f"core {part.index}, {one.where}"
            found.append(msgspec.structs.replace(one, rank=len(found), where=where))
    return found


def lost_request(request_id: str, message: str) -> TokenDelta:
    """Final error delta of a request whose core died."""
    return TokenDelta(
        request_id=request_id, token_ids=[], finish_reason="error", message=message,
        engine_lost=True,
    )  # fmt: skip
