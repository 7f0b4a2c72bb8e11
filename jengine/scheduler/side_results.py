"""Per-request results besides tokens: prompt log-probabilities, captured activations, pooled
vectors and routed experts.

In: each step's output, entry by entry. Out: the same, added to the deltas of the requests. Results
that no request asked for cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.kvcache.token_records import TokenRecords
from jengine.outputs import NO_TOKEN, StepLogprobs, StepOutput, TokenDelta
from jengine.plan import POOLED_AS, TOKENS, Plan
from jengine.request import FINISHED, Request


class Captures:
    """Captured activations of one request in token order.

    Tokens recomputed after a preemption are skipped, so each token is captured once.
    """

    def __init__(self) -> None:
        self._kept = 0  # tokens whose values were kept or delivered
        self._waiting: list[dict[str, np.ndarray]] = []

    def add(self, start: int, values: dict[str, np.ndarray]) -> None:
        """Add captures of the tokens from position `start` on."""
        assert start <= self._kept, f"values of tokens {self._kept} to {start} are missing"
        fresh = {name: array[self._kept - start :] for name, array in values.items()}
        count = len(next(iter(fresh.values())))
        if count:
            self._kept += count
            self._waiting.append(fresh)

    def take(self) -> dict[str, np.ndarray] | None:
        """Captures since the last call; None if there are none."""
        parts, self._waiting = self._waiting, []
        if not parts:
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Pooled:
    """A request's pooled result: one vector, or one per token, gathered chunk by chunk. Restarts
    when the prompt runs again after a preemption."""

    def __init__(self, *, by_token: bool) -> None:
        self._by_token = by_token
        self._rows: list[np.ndarray] = []

    def add_tokens(self, start: int, rows: np.ndarray) -> None:
        """Add the per-token outputs of a chunk that begins at position `start`."""
        if start == 0:
            self._rows = []
        if self._by_token:
            self._rows.append(rows)

    def result(self, vector: np.ndarray) -> np.ndarray:
        """The pooled result. `vector` came with the last chunk."""
        return np.concatenate(self._rows) if self._by_token else vector


class SideResults:
    """Results besides tokens of unfinished requests: prompt log-probabilities, captures, vectors
    and experts."""

    def __init__(self, records: TokenRecords | None = None) -> None:
        self._records = records  # where experts of tokens are kept
        self._scores: dict[str, PromptScores] = {}
        self._captures: dict[str, Captures] = {}
        self._pooled: dict[str, Pooled] = {}
        self._vectors: dict[str, np.ndarray] = {}  # of requests whose last chunk has run

    def expect(self, request: Request) -> None:
        """Start collecting what a new request asks for."""
        wanted = request.wire.sampling.prompt_logprobs
        if wanted is not None:
            self._scores[request.request_id] = PromptScores(request.prompt_length, wanted)
        if request.wire.taps:
            self._captures[request.request_id] = Captures()
        pools = request.wire.sampling.pools
        if pools:
            self._pooled[request.request_id] = Pooled(by_token=POOLED_AS[pools] == "tokens")

    def gather(self, plan: Plan, requests: Sequence[Request], output: StepOutput) -> None:
        """Store a step's results besides sampled tokens."""
        if output.experts is not None:
            self._record(plan, requests, output)
        if self._pooled:
            self._gather_pooled(plan, requests, output)
        if self._scores or self._captures:
            self._gather_by_token(plan, requests, output)

    def _gather_by_token(self, plan: Plan, requests: Sequence[Request], output: StepOutput) -> None:
        """Prompt log-probabilities and captures."""
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

    def _gather_pooled(self, plan: Plan, requests: Sequence[Request], output: StepOutput) -> None:
        """All entries are prefill chunks: pooling models write nothing."""
        end, item = 0, 0
        for request, entry in zip(requests, plan.entries, strict=True):
            begin, end = end, end + entry.length
            pooled = self._pooled.get(request.request_id)
            if pooled is not None and output.pooled_tokens is not None:
                pooled.add_tokens(entry.start, output.pooled_tokens[begin:end])
            if entry.wanted == TOKENS:
                if pooled is not None:
                    self._vectors[request.request_id] = output.pooled[item]
                item += 1

    def deliver(self, request: Request, delta: TokenDelta) -> None:
        """Move results into a delta: prompt log-probabilities once complete, others as they
        come."""
        if self._records is not None and request.num_known > request.prompt_length:
            # The last token was only sampled.
            delta.routed_experts = self._records.take(request, request.num_known - 1)
        if request.request_id in self._vectors:
            vector = self._vectors.pop(request.request_id)
            delta.pooled = self._pooled[request.request_id].result(vector)
        if self._scores or self._captures:
            self._deliver_by_token(request, delta)

    def _deliver_by_token(self, request: Request, delta: TokenDelta) -> None:
        scores = self._scores.get(request.request_id)
        if scores is not None and scores.is_complete:
            del self._scores[request.request_id]
            delta.prompt_logprobs = scores.result()
        captures = self._captures.get(request.request_id)
        if captures is not None:
            delta.captured = captures.take()

    def forget(self, request: Request) -> None:
        """Drop what was collected for a request that has ended."""
        self._scores.pop(request.request_id, None)
        self._captures.pop(request.request_id, None)
        self._pooled.pop(request.request_id, None)
        self._vectors.pop(request.request_id, None)

    def forget_steps(self) -> None:
        """Forget the steps in flight, whose outputs will never be read."""
        if self._records is not None:
            self._records.forget()

    def _record(self, plan: Plan, requests: Sequence[Request], output: StepOutput) -> None:
        """Store the experts of a step's tokens, also for ended requests, whose blocks others may
        share."""
        assert self._records is not None, "the cache keeps what steps return"
        found = iter((output.tokens != NO_TOKEN).sum(axis=1).tolist())
        end = 0
        for index, (request, entry) in enumerate(zip(requests, plan.entries, strict=True)):
            begin, end = end, end + entry.length
            count = next(found) if entry.wanted is TOKENS else 0  # tokens that were sampled
            rows = output.experts[begin:end]
            if index < plan.num_decodes:  # with drafts, its start depends on what was accepted
                self._records.add(request, None, rows, count)
            else:
                self._records.add(request, entry.start, rows, entry.length)


class PromptScores:
    """Prompt log-probabilities, collected chunk by chunk: item i is of prompt token i + 1.

    `count`: top tokens kept per position; -1: all.
    """

    def __init__(self, prompt_length: int, count: int) -> None:
        self._length = prompt_length - 1
        self._count = count
        self._scored = np.zeros(self._length, bool)
        self._scores: StepLogprobs | None = None

    @property
    def is_complete(self) -> bool:
        return bool(self._scored.all())

    def add(self, start: int, chunk: StepLogprobs) -> None:
        """Add a chunk's scores, the first of which is of the token after position `start`. Scores
        of generated tokens are dropped."""
        end = min(start + len(chunk.rank), self._length)
        if end <= start:
            return
        chunk = chunk.cut(0, end - start).top(self._count)
        if self._scores is None:
            self._scores = _blank_like(chunk, self._length)
        for kept, new in zip(self._scores, chunk, strict=True):
            kept[start:end] = new
        self._scored[start:end] = True

    def result(self) -> StepLogprobs:
        """Log-probabilities of the whole prompt; call only if `is_complete`."""
        assert self.is_complete, (
            f"prompt tokens without a score: {np.flatnonzero(~self._scored) + 1}"
        )
        if self._scores is None:  # a prompt of one token
            nothing = StepLogprobs(
                np.zeros((1, 1), "f4"), np.zeros((1, 1), "i4"), np.zeros(1, "i4")
            )
            return _blank_like(nothing, 0)
        return self._scores


def _blank_like(chunk: StepLogprobs, length: int) -> StepLogprobs:
    return StepLogprobs(*(np.zeros((length, *part.shape[1:]), part.dtype) for part in chunk))
