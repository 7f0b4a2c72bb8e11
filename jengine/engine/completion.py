"""One growing completion: text, tokens, log-probabilities, finish reason.

In: token deltas of one wire request. Out: the cumulative or incremental CompletionOutput.
"""

from __future__ import annotations

import numpy as np

from jengine.engine.timing import CompletionTiming
from jengine.logprobs import TEXT_CONTEXT, LogprobTables, ScoreBuffer, StepLogprobs, TextsOfTokens
from jengine.outputs import CompletionOutput, TokenDelta
from jengine.request import WireRequest
from jengine.sampling_params import SamplingParams
from jengine.text.tokenizer import Tokenizer
from jengine.text.transcript import Transcript


class Completion:
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
        # The prompt's last tokens, on which the text of the next depends, then the completion's.
        self._tokens = list(wire.prompt_token_ids[-TEXT_CONTEXT:])
        self._before = len(self._tokens)
        self._scores = ScoreBuffer()
        self._cumulative = 0.0
        self._shown = 0  # tokens that a delta has shown
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
