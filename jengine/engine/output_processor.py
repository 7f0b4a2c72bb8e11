"""Answers out: token deltas become RequestOutputs, with text, log-probabilities and n > 1 merged.

In: submissions and their deltas. Out: outputs as the user asked for them (cumulative, deltas, or
only the final one). Must not know the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jengine.engine.input_processor import Submission
from jengine.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    SampleLogprobs,
    StepLogprobs,
    TokenDelta,
)
from jengine.request import WireRequest
from jengine.sampling_params import RequestOutputKind, SamplingParams
from jengine.text.tokenizer import Tokenizer
from jengine.text.transcript import Transcript

# Tokens of context that are enough to show a token's text.
TEXT_CONTEXT = 3


class Completion:
    """One of a request's answers while it grows."""

    def __init__(
        self, index: int, wire: WireRequest, params: SamplingParams, tokenizer: Tokenizer | None
    ) -> None:
        self.index = index
        self.params = params
        self.tokenizer = tokenizer
        self.context = wire.prompt_token_ids[-TEXT_CONTEXT:]
        self.logprobs: SampleLogprobs = []
        self.flat_logprobs: list[StepLogprobs] = []
        self.cumulative = 0.0
        self.shown = 0  # tokens that a delta has shown
        self.error: str | None = None
        self.prompt_length = len(wire.prompt_token_ids)
        self.captured: list[dict[str, np.ndarray]] = []
        self.transcript = Transcript(
            tokenizer,
            wire.prompt_token_ids,
            stop=params.stop or (),
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            detokenize=params.detokenize and tokenizer is not None,
            min_tokens=params.min_tokens,
        )

    def push(self, delta: TokenDelta) -> bool:
        """Take a delta in. True: a stop string was found, the engine should stop this one."""
        before = len(self.transcript.token_ids)
        self.error = self.error or delta.message
        cut_short = self.transcript.push(delta.token_ids, delta.finish_reason, delta.stop_reason)
        if delta.finish_reason and not self.transcript.finished:
            self.transcript.finish(delta.finish_reason, delta.stop_reason)
        if self.params.logprobs is not None and delta.logprobs is not None:
            kept = len(self.transcript.token_ids) - before
            self._add_logprobs(delta.logprobs.cut(0, kept))
        if delta.captured is not None:
            self.captured.append(delta.captured)
        return cut_short

    def _add_logprobs(self, scores: StepLogprobs) -> None:
        self.cumulative += float(scores.values[:, 0].sum())
        if self.params.flat_logprobs:
            self.flat_logprobs.append(scores)
            return
        for position in range(len(scores.rank)):
            done = len(self.logprobs)
            recent = self.transcript.token_ids[max(0, done - TEXT_CONTEXT) : done]
            known = [*self.context, *recent]
            table = logprob_table(scores, position, known, self.tokenizer)
            self.logprobs.append(table)

    def output(self, delta: bool) -> CompletionOutput:
        """The answer so far, or, for a delta, what is new since the last one."""
        transcript = self.transcript
        first, self.shown = (self.shown if delta else 0), len(transcript.token_ids)
        if delta:
            text, token_ids = transcript.take_delta()
        else:
            text, token_ids = transcript.visible_text(), list(transcript.token_ids)
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self.cumulative if wanted else None,
            logprobs=self._shown_logprobs(first) if wanted else None,
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            captured=self._all_captured() if self.captured else None,
        )

    def _all_captured(self) -> dict[str, np.ndarray]:
        """Values of every token that ran: the answer's last one was only sampled."""
        end = self.prompt_length + max(len(self.transcript.token_ids) - 1, 0)
        return {
            name: np.concatenate([part[name] for part in self.captured])[:end]
            for name in self.captured[0]
        }

    def _shown_logprobs(self, first: int) -> SampleLogprobs | StepLogprobs:
        if self.params.flat_logprobs:
            return StepLogprobs.joined(self.flat_logprobs).cut(first, self.shown)
        return self.logprobs[first : self.shown]


@dataclass
class Answer:
    """A request on its way out: its completions, and what is known of its prompt."""

    submission: Submission
    completions: list[Completion]
    began: float
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_logprobs: list[dict[int, Logprob] | None] | StepLogprobs | None = None
    num_cached_tokens: int = 0
    weights_version: int = 0
    shown_tokens: int = 0
    ended: int = 0  # completions that have

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return self.ended == len(self.completions)

    def output(self) -> RequestOutput:
        """What the user gets now."""
        kind = self.submission.params.output_kind
        delta = kind is RequestOutputKind.DELTA
        errors = [item.error for item in self.completions if item.error]
        return RequestOutput(
            request_id=self.submission.request_id,
            prompt=self.submission.prompt.text,
            prompt_token_ids=self.submission.prompt.token_ids,
            prompt_logprobs=self.prompt_logprobs,
            outputs=[item.output(delta) for item in self.completions],
            finished=self.finished,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
            weight_version=self.weights_version,
            error=errors[0] if errors else None,
        )


class OutputProcessor:
    """Every request that is being answered, by the ids of its wire requests."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self._by_wire: dict[str, tuple[Answer, Completion]] = {}
        self._by_request: dict[str, Answer] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request

    def __len__(self) -> int:
        return len(self._by_request)

    def knows(self, submission: Submission) -> bool:
        """Whether its id, or that of one of its completions, belongs to an open request."""
        wires = (wire.request_id for wire in submission.wires)
        return submission.request_id in self or any(wire in self._by_wire for wire in wires)

    def open(self, submission: Submission) -> None:
        """Expect deltas for this submission."""
        completions = [
            Completion(index, wire, submission.params, self.tokenizer)
            for index, wire in enumerate(submission.wires)
        ]
        answer = Answer(submission, completions, began=time.monotonic())
        self._by_request[submission.request_id] = answer
        for wire, completion in zip(submission.wires, completions, strict=True):
            self._by_wire[wire.request_id] = (answer, completion)

    def close(self, request_id: str) -> None:
        """Forget a request; later deltas of it are ignored."""
        answer = self._by_request.pop(request_id, None)
        for wire in answer.submission.wires if answer else ():
            self._by_wire.pop(wire.request_id, None)

    def wire_ids(self, request_id: str) -> list[str]:
        """The ids under which the engine core knows a request."""
        answer = self._by_request.get(request_id)
        return [wire.request_id for wire in answer.submission.wires] if answer else []

    def take(self, delta: TokenDelta) -> tuple[RequestOutput | None, bool]:
        """An output for the user, if this delta makes one, and whether to abort its request."""
        if delta.request_id not in self._by_wire:
            return None, False
        answer, completion = self._by_wire[delta.request_id]
        had_ended = completion.transcript.finished
        abort = completion.push(delta)
        answer.ended += completion.transcript.finished and not had_ended
        self._note(answer, delta)
        if answer.finished:
            self.close(answer.submission.request_id)
            answer.metrics.finished = time.monotonic() - answer.began
            return answer.output(), abort
        return (answer.output() if self._shows_progress(answer) else None), abort

    def _note(self, answer: Answer, delta: TokenDelta) -> None:
        if delta.token_ids and answer.metrics.time_to_first_token is None:
            answer.metrics.time_to_first_token = time.monotonic() - answer.began
        answer.num_cached_tokens = delta.num_cached_tokens
        answer.weights_version = delta.weights_version
        if delta.prompt_logprobs is not None and answer.prompt_logprobs is None:
            scores, prompt = delta.prompt_logprobs, answer.submission.prompt.token_ids
            flat = answer.submission.params.flat_logprobs
            tables = scores if flat else prompt_tables(scores, prompt, self.tokenizer)
            answer.prompt_logprobs = tables

    def _shows_progress(self, answer: Answer) -> bool:
        params = answer.submission.params
        if params.output_kind is RequestOutputKind.FINAL_ONLY:
            return False
        tokens = sum(len(item.transcript.token_ids) for item in answer.completions)
        due = tokens - answer.shown_tokens >= (params.stream_interval or 1)
        if answer.shown_tokens and not due:
            return False
        answer.shown_tokens = tokens
        return True


def logprob_table(
    scores: StepLogprobs, position: int, known: Sequence[int], tokenizer: Tokenizer | None
) -> dict[int, Logprob]:
    """Token id -> Logprob at one position: the chosen token first, then the best ones."""
    table: dict[int, Logprob] = {}
    rows = zip(scores.ids[position].tolist(), scores.values[position].tolist(), strict=True)
    for column, (token, value) in enumerate(rows):
        if token in table:
            continue
        rank = int(scores.rank[position]) if column == 0 else column
        text = tokenizer.token_text(token, known[-TEXT_CONTEXT:]) if tokenizer else None
        table[token] = Logprob(value, rank, text)
    return table


def prompt_tables(
    scores: StepLogprobs, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> list[dict[int, Logprob] | None]:
    """One table a prompt token; the first token follows nothing and has none."""
    tables: list[dict[int, Logprob] | None] = [None]
    for position in range(len(scores.rank)):
        known = prompt[max(0, position + 1 - TEXT_CONTEXT) : position + 1]
        tables.append(logprob_table(scores, position, known, tokenizer))
    return tables
