"""Records what a scheduler did: counters, histograms of its steps, and the times of its requests.

In: events of requests and steps, on a monotonic clock of this process. Out: numbers for `Counts`,
and RequestTimes for the deltas of requests. Decides nothing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from jengine.counts import PHASES, STEP_SECONDS, STEP_TOKENS, Histogram, RequestTimes
from jengine.outputs import TokenDelta
from jengine.request import FINISHED, Request
from jengine.scheduler.flights import Flight

P = ParamSpec("P")
R = TypeVar("R")
NUMBERS = (
    "corrupted", "prompt_tokens", "cached_prompt_tokens", "generation_tokens", "steps",
    "query_tokens", "attended_tokens", "loaded_tokens", "last_step_age",
)  # fmt: skip


class Recorder:
    """The history of one scheduler, whose steps cost about a microsecond each here.

    The clock is read once per step and per event of a request, never per token.
    """

    def __init__(self, engine: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self.clock = clock
        self.steps = 0
        self.corrupted = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.query_tokens = 0
        self.attended_tokens = 0
        self.loaded_tokens = 0
        self.step_tokens = Histogram.of(STEP_TOKENS)
        self.step_seconds = {phase: Histogram.of(STEP_SECONDS) for phase in PHASES}
        self.committed_at = clock()
        self._planned_at = self.committed_at
        # Of the commit in progress: requests whose prefill it completed, and `corrupted` before it.
        self._answered: list[Request] = []
        self._corrupted_before = 0

    @property
    def last_step_age(self) -> float:
        """Seconds since a step was committed."""
        return self.clock() - self.committed_at

    def numbers(self) -> dict[str, Any]:
        """Fields of `Counts`."""
        values = {name: getattr(self, name) for name in NUMBERS}
        values["step_tokens"] = self.step_tokens.copy()
        values["step_seconds"] = {name: one.copy() for name, one in self.step_seconds.items()}
        return values

    def queued(self, request: Request) -> None:
        """A request has arrived."""
        request.queued_at = self.clock()

    def scheduled(self, request: Request) -> None:
        """A request got a row; also after a preemption, which counts as waiting until now."""
        if request.first_token_at < 0:
            request.scheduled_at = self.clock()

    def begin_commit(self, flight: Flight) -> None:
        """A step's output is there. Requests whose prompt it completed have their first token."""
        now = self.committed_at = self.clock()
        plan = flight.plan
        self._answered = answered = []
        self._corrupted_before = self.corrupted
        if len(flight.requests) == plan.num_decodes:
            return
        wanted = plan.entries.wants_tokens[plan.num_decodes :].tolist()
        for request, wants in zip(flight.requests[plan.num_decodes :], wanted, strict=True):
            if wants and request.status is not FINISHED:
                answered.append(request)
                if request.first_token_at < 0:
                    request.first_token_at = now
                    self.prompt_tokens += request.prompt_length
                    self.cached_prompt_tokens += min(
                        request.num_cached_tokens, request.prompt_length
                    )

    def end_commit(self, flight: Flight, ends: list[int], deltas: list[TokenDelta]) -> None:
        """A step's tokens were given to its requests. `ends` are the ends of its entries."""
        plan = flight.plan
        self.steps += plan.repeats
        if plan.repeats == 1:
            self.generation_tokens += len(deltas) - (self.corrupted - self._corrupted_before)
        else:
            self.generation_tokens += sum(len(delta.token_ids) for delta in deltas)
        tokens = plan.num_decodes * plan.repeats
        loaded = sum(ends) * plan.repeats
        attended = loaded
        if len(ends) > plan.num_decodes:
            lengths = plan.entries.lengths[plan.num_decodes :].tolist()
            for end, length in zip(ends[plan.num_decodes :], lengths, strict=True):
                tokens += length
                attended += length * (2 * end - length + 1) // 2 - end
            for request, delta in zip(
                self._answered, deltas[len(deltas) - len(self._answered) :], strict=True
            ):
                if delta.times is None:
                    delta.times = self.times(request, request.first_token_at)
        self.query_tokens += tokens
        self.attended_tokens += attended
        self.loaded_tokens += loaded
        self.step_tokens.observe(tokens)

    def corrupted_one(self) -> None:
        """A step's output for a request cannot be used, so its delta has no token."""
        self.corrupted += 1

    def times(self, request: Request, last_token_at: float | None = None) -> RequestTimes:
        """The times of a request until its last token, by default that of the newest step."""
        last = self.committed_at if last_token_at is None else last_token_at
        first, scheduled = request.first_token_at, request.scheduled_at
        if scheduled < 0:
            queue, prefill, decode = self.clock() - request.queued_at, 0.0, 0.0
        elif first < 0:
            queue, prefill, decode = scheduled - request.queued_at, self.clock() - scheduled, 0.0
        else:
            queue, prefill, decode = scheduled - request.queued_at, first - scheduled, last - first
        return RequestTimes(queue, prefill, decode, request.num_preemptions, self.engine)

    def took(self, phase: str, began: float, ended: float) -> None:
        """A phase of a step has ended."""
        if phase == "schedule":
            self._planned_at = ended
        elif phase == "commit":
            self.step_seconds["run"].observe(began - self._planned_at)
        self.step_seconds[phase].observe(ended - began)


class Recorded(Protocol):
    """An object whose methods are timed."""

    recorder: Recorder


S = TypeVar("S", bound=Recorded)


def timed(
    phase: str,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Record how long a method of a step takes."""

    def wrap(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def measured(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            began = self.recorder.clock()
            result = method(self, *args, **kwargs)
            self.recorder.took(phase, began, self.recorder.clock())
            return result

        return measured

    return wrap
