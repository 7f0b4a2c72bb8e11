"""A request on its way out: its completions, and the output that its reader takes next.

In: token deltas. Out: one RequestOutput whenever the reader asks, with everything that is new since
it asked before. So a slow reader holds up nothing and keeps nothing but the answer itself.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from jengine.engine.completion import Completion
from jengine.engine.input_processor import Submission
from jengine.logprobs import LogprobTables, StepLogprobs, TokenTexts
from jengine.outputs import RequestMetrics, RequestOutput, TokenDelta
from jengine.sampling_params import RequestOutputKind
from jengine.text.tokenizer import Tokenizer


class Answer:
    """What is known of one request. One thread pushes, another may take."""

    def __init__(
        self,
        request_id: str,
        submission: Submission,
        tokenizer: Tokenizer | None,
        texts: TokenTexts,
        reader: Any,
    ) -> None:
        self.request_id = request_id  # by which the user knows the request
        self.submission = submission
        self.reader = reader  # who is told that there is something to take
        self.completions = [
            Completion(index, wire, submission.params, tokenizer, texts)
            for index, wire in enumerate(submission.wires)
        ]
        self.metrics = RequestMetrics()
        self.finished = False  # every completion has ended
        self.discarded = False  # its reader is gone, so it is never completed
        self.error: BaseException | None = None
        self.num_cached_tokens = 0
        self._texts = texts
        self._began = time.monotonic()
        self._prompt_logprobs: LogprobTables | StepLogprobs | None = None
        self._weights_version = 0
        self._ended = 0  # completions
        self._tokens = 0  # of all completions
        self._shown_tokens = 0
        self._has_news = False
        self._lock = threading.Lock()

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self.submission.prompt.token_ids

    @property
    def is_open(self) -> bool:
        """Whether it is still being answered for a reader."""
        return not (self.finished or self.discarded)

    def push(self, completion: Completion, delta: TokenDelta) -> tuple[bool, bool]:
        """Take a delta in: whether the reader must be told, and whether to abort the completion."""
        with self._lock:
            ended, tokens = completion.transcript.finished, len(completion.transcript.token_ids)
            cut_short = completion.push(delta)
            self._ended += completion.transcript.finished and not ended
            self._tokens += len(completion.transcript.token_ids) - tokens
            self._note(delta)
            if self.finished:
                self.metrics.finished = time.monotonic() - self._began
            told = self._has_news
            self._has_news = told or self.finished or self._shows_progress()
            return self._has_news and not told, cut_short

    def fail(self, error: BaseException) -> None:
        """End the answer: the reader gets this error next."""
        with self._lock:
            self.error, self.finished = error, True

    def take(self) -> RequestOutput | None:
        """What is new for the reader, if anything is. Raises the error that has ended it."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if not self._has_news:
                return None
            self._has_news = False
            return self._output()

    def _output(self) -> RequestOutput:
        delta = self.submission.params.output_kind is RequestOutputKind.DELTA
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.submission.prompt.text,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=[item.output(delta) for item in self.completions],
            finished=self.finished,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
            weight_version=self._weights_version,
            error=next((item.error for item in self.completions if item.error), None),
        )

    def _note(self, delta: TokenDelta) -> None:
        self.finished = self._ended == len(self.completions)
        if delta.token_ids and self.metrics.time_to_first_token is None:
            self.metrics.time_to_first_token = time.monotonic() - self._began
        self.num_cached_tokens = delta.num_cached_tokens
        self._weights_version = delta.weights_version
        if delta.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = self._tables(delta.prompt_logprobs)

    def _tables(self, scores: StepLogprobs) -> LogprobTables | StepLogprobs:
        if self.submission.params.flat_logprobs:
            return scores
        return LogprobTables(scores, self.prompt_token_ids, 1, self._texts, opens_prompt=True)

    def _shows_progress(self) -> bool:
        params = self.submission.params
        if params.output_kind is RequestOutputKind.FINAL_ONLY:
            return False
        due = self._tokens - self._shown_tokens >= (params.stream_interval or 1)
        if self._shown_tokens and not due:
            return False
        self._shown_tokens = self._tokens
        return True
