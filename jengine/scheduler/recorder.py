"""Scheduler statistics: counters, step histograms and request times.

In: events of requests and steps, on a monotonic clock of this process. Out: numbers for `Counts`,
and RequestTimes for the deltas of requests. Decides nothing.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from jengine.counts import PHASES, STEP_SECONDS, STEP_TOKENS, Histogram, RequestTimes
from jengine.outputs import TokenDelta
from jengine.request import FINISHED, Request
from jengine.scheduler.flights import Flight

# Latest prefill-heavy steps whose median gives the time per prompt token.
PROMPT_STEPS = 32
STEPS_AT_ONCE = 256  # that are put into histograms together
NUMBERS = (
    "corrupted", "prompt_tokens", "cached_prompt_tokens", "external_prompt_tokens",
    "generation_tokens", "steps",
    "query_tokens", "attended_tokens", "loaded_tokens", "last_step_age",
)  # fmt: skip


class Recorder:
    """Statistics of one scheduler.

    Costs a few microseconds per step for any number of requests: the clock is read per step and per
    event of a request, never per token, and histograms are filled many steps at a time.
    """

    def __init__(self, engine: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self.clock = clock
        self.steps = 0
        self.corrupted = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.external_prompt_tokens = 0
        self.generation_tokens = 0
        self.query_tokens = 0
        self.attended_tokens = 0
        self.loaded_tokens = 0
        self.committed_at = clock()  # when the newest output was there
        self._histograms = (
            *(Histogram.of(STEP_SECONDS) for _ in PHASES),
            Histogram.of(STEP_TOKENS),
        )
        # Steps not in the histograms yet: seconds of each phase, and tokens.
        self._steps: list[tuple[float, ...]] = []
        self._scheduling = 0.0  # seconds since the newest output
        self._prompt_steps: deque[float] = deque(maxlen=PROMPT_STEPS)  # seconds of a token
        self._planned_at = self.committed_at
        # Of the commit in progress: requests whose prefill it completed.
        self._answered: list[Request] = []
        # Of the step that is being committed: deltas without a token, tokens appended to others.
        self._without_token = self._appended = 0

    @property
    def last_step_age(self) -> float:
        """Seconds since the last step's output arrived."""
        return self.clock() - self.committed_at

    @property
    def seconds_of_prompt_token(self) -> float | None:
        """Median time per prompt token of the latest steps with prompts; None before any."""
        return statistics.median(self._prompt_steps) if self._prompt_steps else None

    def numbers(self) -> dict[str, Any]:
        """Fields of `Counts`."""
        self._fill_histograms()
        *seconds, tokens = (histogram.copy() for histogram in self._histograms)
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "step_seconds": dict(zip(PHASES, seconds, strict=True)),
            "step_tokens": tokens,
        }

    def queued(self, request: Request) -> None:
        """A request has arrived."""
        request.queued_at = self.clock()

    def scheduled(self, request: Request) -> None:
        """A request got a row; also after a preemption, which counts as waiting until now."""
        if request.first_token_at < 0:
            request.scheduled_at = self.clock()

    def planned(self, began: float) -> None:
        """Record that choosing the next step took from `began` until now, even if none ran."""
        self._planned_at = now = self.clock()
        self._scheduling += now - began

    def begin_commit(self, flight: Flight) -> None:
        """Record that a step's output has arrived, and the first tokens of requests whose prompt it
        completed."""
        self.committed_at = self.clock()
        self._without_token = self._appended = 0
        if len(flight.requests) > flight.plan.num_decodes:
            self._answered = self._note_first_tokens(flight)

    def _note_first_tokens(self, flight: Flight) -> list[Request]:
        """The requests whose prefill, or recomputation, is complete with this step."""
        count = flight.plan.num_decodes
        wanted = flight.plan.entries.wants_tokens[count:].tolist()
        answered = [
            request
            for request, wants in zip(flight.requests[count:], wanted, strict=True)
            if wants and request.status is not FINISHED
        ]
        for request in answered:
            if request.first_token_at < 0:
                request.first_token_at = self.committed_at
                self.prompt_tokens += request.prompt_length
                cached = min(request.num_cached_tokens, request.prompt_length)
                self.cached_prompt_tokens += cached
                self.external_prompt_tokens += min(max(request.num_external_tokens, 0), cached)
        return answered

    def end_commit(self, flight: Flight, ends: list[int], deltas: list[TokenDelta]) -> None:
        """Record a step whose tokens were appended. `ends`: position after each entry."""
        plan, runs = flight.plan, flight.plan.repeats
        tokens, loaded = plan.num_decode_rows * runs, sum(ends) * runs
        attended = loaded
        if len(ends) > plan.num_decodes:
            lengths = plan.entries.lengths[plan.num_decodes :].tolist()
            for end, length in zip(ends[plan.num_decodes :], lengths, strict=True):
                tokens += length
                attended += length * (2 * end - length + 1) // 2 - end
            self._stamp(deltas)
        if runs == 1 and not plan.drafts:  # each has a token, unless its output cannot be used
            self.generation_tokens += len(deltas) - self._without_token + self._appended
        else:
            self.generation_tokens += sum(len(delta.token_ids) for delta in deltas)
        self.steps += runs
        self.query_tokens += tokens
        self.attended_tokens += attended
        self.loaded_tokens += loaded
        if 2 * plan.num_decode_rows * runs < tokens:  # mostly prompts
            self._prompt_steps.append((self.committed_at - self._planned_at) / tokens)
        ran, committing = self.committed_at - self._planned_at, self.clock() - self.committed_at
        self._steps.append((self._scheduling, ran, committing, tokens))
        self._scheduling = 0.0
        if len(self._steps) >= STEPS_AT_ONCE:
            self._fill_histograms()

    def _stamp(self, deltas: list[TokenDelta]) -> None:
        """Add times to the last deltas, of requests that completed prefill in this step."""
        answered, self._answered = self._answered, []
        for request, delta in zip(answered, deltas[len(deltas) - len(answered) :], strict=True):
            if delta.times is None:
                delta.times = self.times(request, request.first_token_at)

    def _fill_histograms(self) -> None:
        steps, self._steps = self._steps, []
        if steps:
            for histogram, values in zip(self._histograms, zip(*steps, strict=True), strict=True):
                histogram.observe_all(values)

    def corrupted_one(self) -> None:
        """Count a request that got no token because the step's output was unusable (not finite)."""
        self.corrupted += 1
        self._without_token += 1

    def appended(self, count: int) -> None:
        """Count tokens forced by a grammar."""
        self._appended += count

    def ended_without_token(self) -> None:
        """Count a request that ended without a token: its grammar rejected the token, or it wanted
        none."""
        self._without_token += 1

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
