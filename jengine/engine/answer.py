"""A request's completions, and the next RequestOutput for its reader.

In: token deltas. Out: one RequestOutput per read with everything new since the last, so outputs
never queue up for a slow reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jengine.adapters import LoRARequest
from jengine.engine.timing import Arrival, CompletionTiming
from jengine.logprobs import TEXT_CONTEXT, LogprobTables, ScoreBuffer, StepLogprobs, TextsOfTokens
from jengine.outputs import CompletionOutput, RequestMetrics, RequestOutput, TokenDelta
from jengine.request import WireRequest
from jengine.sampling_params import RequestOutputKind, SamplingParams
from jengine.text.tokenizer import Tokenizer
from jengine.text.transcript import Transcript


class AppliedDelta(NamedTuple):
    """Result of applying a delta to an answer."""

    answer: Answer
    has_news: bool  # the reader must be notified: the answer has its first output since `take`
    cut_short: bool  # a stop string was found, so the engine should end the completion
    ended: bool  # the completion ended with this delta


class Answer:
    """A request and its completions so far. One thread pushes deltas, another takes outputs."""

    def __init__(
        self,
        request_id: str,
        text: str | None,
        params: SamplingParams,
        completions: Sequence[Completion],
        reader: Any,
        arrival: Arrival,
    ) -> None:
        self.request_id = request_id  # by which the user knows the request
        self.completions = completions
        self.reader = reader  # to be notified of new output, by the caller of `Session.process`
        self.metrics = RequestMetrics(arrival_time=time.time() - (time.monotonic() - arrival.at))
        self.finished = False  # every completion has ended
        self.lora_request: LoRARequest | None = None  # the adapter that answers it
        self.discarded = False  # its reader is gone, so it is never completed
        self.error: BaseException | None = None
        self.num_cached_tokens = 0
        self._text = text  # of the prompt
        self.params = params
        self.arrival = arrival
        self._prompt_logprobs: LogprobTables | StepLogprobs | None = None
        self._weights_version = 0
        self._kv_transfer: dict[str, Any] | None = None
        self._ended = 0  # completions
        self._tokens = 0  # of all completions
        self._shown_tokens = 0
        self._has_news = False
        self._lock = threading.Lock()

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.completions[0].wire.prompt_token_ids

    @property
    def is_open(self) -> bool:
        """Whether it has neither finished nor been discarded."""
        return not (self.finished or self.discarded)

    def push(self, completion: Completion, delta: TokenDelta, at: float) -> AppliedDelta:
        """Add a delta received at `at`."""
        with self._lock:
            transcript = completion.transcript
            had_ended, tokens = transcript.finished, len(transcript.token_ids)
            cut_short = completion.push(delta)
            ended = transcript.finished and not had_ended
            self._ended += ended
            self._tokens += len(transcript.token_ids) - tokens
            self._note(completion, delta)
            if self.finished:
                self.metrics.finished = at - self.arrival.at
            told = self._has_news
            self._has_news = told or self.finished or self._shows_progress()
            return AppliedDelta(self, self._has_news and not told, cut_short, ended)

    def fail(self, error: BaseException) -> None:
        """End the request; the reader's next `take` raises this error."""
        with self._lock:
            self.error, self.finished = error, True

    def take(self) -> RequestOutput | None:
        """Return the next output; None if nothing is new. Raises what ended the request."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if not self._has_news:
                return None
            self._has_news = False
            return self._output()

    def _output(self) -> RequestOutput:
        delta = self.params.output_kind is RequestOutputKind.DELTA
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._text,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=[
                replace(item.output(delta), lora_request=self.lora_request)
                if self.lora_request
                else item.output(delta)
                for item in self.completions
            ],
            lora_request=self.lora_request,
            finished=self.finished,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
            kv_transfer_params=self._kv_transfer,
            weight_version=self._weights_version,
            error=next((item.error for item in self.completions if item.error), None),
            engine_lost=any(item.engine_lost for item in self.completions),
            refused=any(item.refused for item in self.completions),
            pooled=self.completions[0].pooled,
        )

    def _note(self, completion: Completion, delta: TokenDelta) -> None:
        self.finished = self._ended == len(self.completions)
        self._measure(completion, delta)
        self.num_cached_tokens = delta.num_cached_tokens
        self._weights_version = delta.weights_version
        self._kv_transfer = delta.kv_transfer or self._kv_transfer
        if delta.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = self._tables(delta.prompt_logprobs)

    def _measure(self, completion: Completion, delta: TokenDelta) -> None:
        metrics, timing = self.metrics, completion.timing
        metrics.num_generation_tokens = self._tokens
        metrics.last_token_ts = timing.last or metrics.last_token_ts
        if delta.times is None:
            return
        if timing.first and metrics.time_to_first_token is None:
            metrics.time_to_first_token = timing.first - self.arrival.at
            metrics.first_token_latency = metrics.time_to_first_token
            metrics.first_token_ts = timing.first
            metrics.scheduled_ts = timing.first - delta.times.prefill
            metrics.queued_ts = metrics.scheduled_ts - delta.times.queue
        if delta.finish_reason is not None:
            metrics.num_preemptions += delta.times.preemptions
            # A request that a core refuses ends with an error too, but has no times.
            metrics.is_corrupted |= delta.finish_reason == "error"
            if len(self.completions) == 1 and timing.first:
                metrics.last_token_ts = timing.first + delta.times.decode

    def _tables(self, scores: StepLogprobs) -> LogprobTables | StepLogprobs:
        if self.params.flat_logprobs:
            return scores
        texts = self.completions[0].texts
        return LogprobTables(scores, self.prompt_token_ids, 1, texts, opens_prompt=True)

    def _shows_progress(self) -> bool:
        params = self.params
        if params.output_kind is RequestOutputKind.FINAL_ONLY:
            return False
        due = self._tokens - self._shown_tokens >= (params.stream_interval or 1)
        if self._shown_tokens and not due:
            return False
        self._shown_tokens = self._tokens
        return True


class Completion:
    """One growing completion: text, tokens, log-probabilities, finish reason."""

    def __init__(
        self,
        index: int,
        wire: WireRequest,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        texts: TextsOfTokens,
        timing: CompletionTiming,
    ) -> None:
        self.index = index
        self.wire = wire
        self.params = params
        self.texts = texts
        self.timing = timing
        self.error: str | None = None
        self.engine_lost = False
        self.refused = False
        self.captured: list[dict[str, np.ndarray]] = []
        self._experts: list[np.ndarray] = []  # of tokens, in their order
        self.pooled: np.ndarray | None = None
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
        # The prompt's last tokens, context for detokenizing the first ones, then the completion's.
        self._tokens = list(wire.prompt_token_ids[-TEXT_CONTEXT:])
        self._before = len(self._tokens)
        self._scores = ScoreBuffer()
        self._cumulative = 0.0
        self._shown = 0  # tokens in earlier outputs
        self.num_cached_tokens = 0  # of the prompt

    def push(self, delta: TokenDelta) -> bool:
        """Add a delta. Returns True if a stop string was found: the request must be aborted."""
        done = len(self.transcript.token_ids)
        self.error = self.error or delta.message
        self.engine_lost |= delta.engine_lost
        self.refused |= delta.refused
        self.num_cached_tokens = delta.num_cached_tokens
        cut_short = self.transcript.push(delta.token_ids, delta.finish_reason, delta.stop_reason)
        if self.params.num_logprobs is not None and delta.logprobs is not None:
            new = self.transcript.token_ids[done:]
            self._tokens += new
            self._scores.append(delta.logprobs.cut(0, len(new)))
            self._cumulative += float(delta.logprobs.values[: len(new), 0].sum())
        if delta.pooled is not None:
            self.pooled = delta.pooled
        if delta.captured is not None:
            self.captured.append(delta.captured)
        if delta.routed_experts is not None:
            self._experts.append(delta.routed_experts)
        return cut_short

    def output(self, delta: bool) -> CompletionOutput:
        """The completion so far, or with `delta` what is new since the last call."""
        transcript = self.transcript
        first, self._shown = (self._shown if delta else 0), len(transcript.token_ids)
        if delta:
            text, token_ids = transcript.take_delta()
        else:
            text, token_ids = transcript.visible_text(), list(transcript.token_ids)
        wanted = self.params.num_logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self._cumulative if wanted else None,
            logprobs=self._logprobs_from(first) if wanted else None,
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            captured=self._all_captured() if self.captured else None,
            routed_experts=self._all_experts() if self._experts and transcript.finished else None,
        )

    def _logprobs_from(self, first: int) -> LogprobTables | StepLogprobs:
        scores = self._scores.view(first, self._shown)
        if self.params.flat_logprobs:
            return scores
        return LogprobTables(scores, self._tokens, self._before + first, self.texts)

    def _all_captured(self) -> dict[str, np.ndarray]:
        """Captured activations of all tokens that ran; the last sampled token never runs."""
        return {
            name: np.concatenate([part[name] for part in self.captured])[: self._tokens_run]
            for name in self.captured[0]
        }

    def _all_experts(self) -> np.ndarray:
        """Routed experts of all tokens that ran, from the requested position on."""
        wanted = max(self._tokens_run - self.wire.routed_experts_start, 0)
        return np.concatenate(self._experts)[:wanted]

    @property
    def _tokens_run(self) -> int:
        """Prompt and completion tokens except the last, which was only sampled."""
        return len(self.wire.prompt_token_ids) + max(len(self.transcript.token_ids) - 1, 0)
