"""Registry of open requests, to which it routes deltas.

In: wire requests and token deltas. Out: answers with new output. Must not know the scheduler,
threads, or how readers wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jengine.engine.answer import Answer, AppliedDelta, Completion
from jengine.engine.timing import Arrival, CompletionTiming
from jengine.logprobs import NoTexts
from jengine.metrics.front_stats import EndedCompletion, FrontStats
from jengine.metrics.tracing import EndedRequest, Tracer
from jengine.outputs import TokenDelta
from jengine.request import WireRequest
from jengine.sampling_params import SamplingParams
from jengine.text.token_texts import TokenTexts
from jengine.text.tokenizer import Tokenizer


class OutputProcessor:
    """Open requests by user id, and completions by wire request id."""

    def __init__(
        self, tokenizer: Tokenizer | None, stats: FrontStats, tracer: Tracer | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.stats = stats
        self.tracer = tracer
        self._texts = NoTexts() if tokenizer is None else TokenTexts(tokenizer)
        self._by_wire: dict[str, tuple[Answer, Completion]] = {}
        self._by_request: dict[str, Answer] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request

    def __len__(self) -> int:
        return len(self._by_request)

    @property
    def open_answers(self) -> list[Answer]:
        """Unfinished requests in order of arrival."""
        return list(self._by_request.values())

    def open(
        self,
        request_id: str,
        text: str | None,
        params: SamplingParams,
        wires: Sequence[WireRequest],
        reader: Any,
        arrival: Arrival,
    ) -> Answer:
        """Register a request's wire requests, one per completion."""
        texts = self._texts if params.detokenize else NoTexts()
        completions = [
            Completion(index, wire, params, self.tokenizer, texts, CompletionTiming(arrival.at))
            for index, wire in enumerate(wires)
        ]
        answer = Answer(request_id, text, params, completions, reader, arrival)
        self._by_request[request_id] = answer
        for completion in completions:
            self._by_wire[completion.wire.request_id] = (answer, completion)
        return answer

    def close(self, answer: Answer, reason: str, at: float) -> None:
        """Remove a request; later deltas are ignored. `reason`: finish reason of its unfinished
        completions, for statistics and traces."""
        if self._by_request.get(answer.request_id) is answer:
            del self._by_request[answer.request_id]
            for completion in answer.completions:
                if not completion.transcript.finished:
                    self._count_end(completion, reason, at)
            self._count_request(answer)
            if self.tracer is not None:
                self.tracer.end(ended_request(answer, reason, at))
        for completion in answer.completions:
            self._by_wire.pop(completion.wire.request_id, None)

    def answer(self, request_id: str) -> Answer | None:
        return self._by_request.get(request_id)

    def take(self, delta: TokenDelta, at: float) -> AppliedDelta | None:
        """Apply a delta received at `at`; None if its request is no longer open."""
        if delta.request_id not in self._by_wire:
            return None
        answer, completion = self._by_wire[delta.request_id]
        completion.timing.note(delta, at, self.stats)
        applied = answer.push(completion, delta, at)
        if applied.ended:
            self._count_end(completion, completion.transcript.finish_reason or "stop", at)
        if answer.finished:
            self.close(answer, "stop", at)
        return applied

    def _count_end(self, completion: Completion, reason: str, at: float) -> None:
        timing = completion.timing
        ended = EndedCompletion(
            reason=reason,
            seconds=at - timing.arrival,
            prompt_tokens=len(completion.wire.prompt_token_ids),
            cached_tokens=completion.num_cached_tokens,
            generated_tokens=len(completion.transcript.token_ids),
            max_tokens=completion.params.max_tokens,
            times=timing.intervals(),
        )
        timing.stats_of(self.stats).end_completion(ended)

    def _count_request(self, answer: Answer) -> None:
        generated = [len(one.transcript.token_ids) for one in answer.completions]
        engine = answer.completions[0].timing.stats_of(self.stats)
        engine.end_request(len(generated), max(generated))


def ended_request(answer: Answer, reason: str, at: float) -> EndedRequest:
    """Trace record of an ended request; `reason` for completions without a finish reason."""
    reasons = [one.transcript.finish_reason or reason for one in answer.completions]
    return EndedRequest(
        request_id=answer.request_id,
        traceparent=answer.arrival.traceparent,
        params=answer.params,
        metrics=answer.metrics,
        seconds=at - answer.arrival.at,
        prompt_tokens=len(answer.prompt_token_ids),
        reasons=tuple(reasons),
    )
