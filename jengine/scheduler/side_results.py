"""Results of requests besides tokens: log-probabilities of their prompts, and captured values.

In: each step's output, entry by entry. Out: complete prompt scores and new captured values, added
to the deltas of the requests' tokens. Requests that want neither cost nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.outputs import StepOutput, TokenDelta
from jengine.plan import Plan
from jengine.request import FINISHED, Request
from jengine.scheduler.prompt_scores import PromptScores


class Captures:
    """Captured values of one request, in the order of its tokens, each token once.

    Tokens that run again after a preemption repeat what was kept before and are left out.
    """

    def __init__(self) -> None:
        self._kept = 0  # tokens whose values were kept or delivered
        self._waiting: list[dict[str, np.ndarray]] = []

    def add(self, start: int, values: dict[str, np.ndarray]) -> None:
        """Keep the values of the tokens from position `start` on."""
        assert start <= self._kept, f"values of tokens {self._kept} to {start} are missing"
        fresh = {name: array[self._kept - start :] for name, array in values.items()}
        count = len(next(iter(fresh.values())))
        if count:
            self._kept += count
            self._waiting.append(fresh)

    def take(self) -> dict[str, np.ndarray] | None:
        """What was kept since the last call."""
        parts, self._waiting = self._waiting, []
        if not parts:
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class SideResults:
    """Everything gathered for requests that have not ended, by request id."""

    def __init__(self) -> None:
        self._scores: dict[str, PromptScores] = {}
        self._captures: dict[str, Captures] = {}

    def expect(self, request: Request) -> None:
        """Begin to gather what a new request asks for."""
        wanted = request.wire.sampling.prompt_logprobs
        if wanted is not None:
            self._scores[request.request_id] = PromptScores(request.prompt_length, wanted)
        if request.wire.taps:
            self._captures[request.request_id] = Captures()

    def gather(self, plan: Plan, requests: Sequence[Request], output: StepOutput) -> None:
        """Keep what a step says about its entries besides sampled tokens."""
        if not self._scores and not self._captures:
            return
        decoded = plan.num_decode_rows
        end = 0  # of an entry's tokens among the plan's
        for index, (request, entry) in enumerate(zip(requests, plan.entries, strict=True)):
            begin, end = end, end + entry.length
            if request.status is FINISHED:
                continue
            scores = self._scores.get(request.request_id)
            # Prompts are scored in prefill chunks, which come after the decodes.
            if scores and output.prompt_logprobs and index >= plan.num_decodes:
                first = begin - decoded
                scores.add(entry.start, output.prompt_logprobs.cut(first, first + entry.length))
            captures = self._captures.get(request.request_id)
            values = output.captured.get(request.wire.taps)
            if captures and values:
                captures.add(entry.start, {name: of[begin:end] for name, of in values.items()})

    def deliver(self, request: Request, delta: TokenDelta) -> None:
        """Put into a delta what is ready: prompt scores once and complete, values as they come."""
        if not self._scores and not self._captures:
            return
        scores = self._scores.get(request.request_id)
        if scores is not None and scores.is_complete:
            del self._scores[request.request_id]
            delta.prompt_logprobs = scores.result()
        captures = self._captures.get(request.request_id)
        if captures is not None:
            delta.captured = captures.take()

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._scores.pop(request.request_id, None)
        self._captures.pop(request.request_id, None)
