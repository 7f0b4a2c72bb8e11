"""A request in progress: tokens so far, current replica, and token times.

In: deltas of a step, and the end times of its runs. Out: requests that are done at this replica.
Must not know where they go next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from jengine.capacity.simulation.history import Gaps
from jengine.capacity.simulation.trace import SimulatedRequest
from jengine.outputs import TokenDelta
from jengine.plan import RowSampling
from jengine.request import WireRequest

GREEDY = RowSampling()


@dataclass(slots=True)
class Journey:
    """An unfinished request and its position in the pools."""

    name: str
    ask: SimulatedRequest
    arrived: float
    first: float = -1.0  # when it got its first token
    last: float = -1.0  # and its newest
    cached: int = -1  # tokens of its prompt that needed no prefill
    answer: list[int] = field(default_factory=list)
    stage: int = 0  # which pool it is in
    site: int = -1  # and which replica, of all
    source: int = -1  # from which its keys and values are being copied
    attempt: int = 0  # how often it was placed


def wire_of(journey: Journey, *, is_last: bool) -> WireRequest:
    """The WireRequest for the next stage: the rest of the answer, or one token before the last
    stage."""
    ask, answer = journey.ask, journey.answer
    return WireRequest(
        request_id=journey.name,
        prompt_token_ids=ask.prompt + answer if answer else ask.prompt,
        sampling=GREEDY,
        max_tokens=ask.answer - len(answer) if is_last else 1,
    )


def noted(
    deltas: list[TokenDelta],
    ends: list[float],
    live: Mapping[str, Journey],
    gaps: Gaps,
    tell: Callable[[TokenDelta], None] | None = None,
) -> list[Journey]:
    """Apply token deltas to their requests and inform the router. Returns those that ended here."""
    ended: list[Journey] = []
    waits: list[float] = []
    if len(ends) > 1:
        waits = [b - a for a, b in pairwise(ends)] * len(deltas)
    for delta in deltas:
        journey = live[delta.request_id]
        if journey.answer:
            waits.append(ends[0] - journey.last)
        else:
            journey.first = ends[0]
            journey.cached = delta.num_cached_tokens
        journey.last = ends[-1]
        journey.answer += delta.token_ids
        if tell is not None:
            tell(delta)
        if delta.finish_reason is not None:
            ended.append(journey)
    gaps.add_all(waits)
    return ended
