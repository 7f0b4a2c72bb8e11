"""Renders completions: text, tokens and log-probabilities, with the prompt if it is echoed.

In: outputs of the engine. Out: choices. Shared by JSON responses and streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.server.completions.fields import CompletionRequest
from jengine.server.completions.types import CompletionChoice
from jengine.server.formats.arrays import npy_base64
from jengine.server.formats.logprobs import CompletionLogprobs, LogprobFormat, prompt_logprobs
from jengine.server.serving.service import Service


class CompletionTexts:
    """How this request's completions are rendered, shared by the JSON and the SSE response."""

    def __init__(self, request: CompletionRequest, service: Service) -> None:
        self.request = request
        self.tokenizer = service.live.engine.tokenizer
        as_ids = request.return_tokens_as_token_ids
        if as_ids is None:
            as_ids = service.settings.return_tokens_as_token_ids
        self._format = LogprobFormat(self.tokenizer, as_ids=as_ids)
        # With max_tokens=0 the engine generates one token, which is dropped.
        self.scores_only = bool(request.echo) and request.max_tokens == 0

    def choice(self, index: int, output: RequestOutput, one: CompletionOutput) -> CompletionChoice:
        """Render a complete choice."""
        echo, ids = bool(self.request.echo), bool(self.request.return_token_ids)
        scores = output.prompt_logprobs
        return CompletionChoice(
            index=index,
            text=self.text(output, one, echo=echo),
            logprobs=self.logprobs(output, one, echo=echo),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
            token_ids=one.token_ids if ids else None,
            routed_experts=npy_base64(one.routed_experts),
            prompt_logprobs=None if scores is None else prompt_logprobs(scores),  # type: ignore[arg-type]
            prompt_token_ids=output.prompt_token_ids if ids else None,
        )

    def text(self, output: RequestOutput, one: CompletionOutput, *, echo: bool) -> str:
        """New text, preceded by the prompt's text if `echo`."""
        text = "" if self.scores_only else one.text
        return self.prompt_text(output) + text if echo else text

    def prompt_text(self, output: RequestOutput) -> str:
        """The prompt's text: as given, or detokenized. Empty if its ids are returned, as in
        vLLM."""
        if self.request.return_token_ids:
            return ""
        if output.prompt is not None:
            return output.prompt
        if self.tokenizer is None:
            return ""
        return self.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def logprobs(
        self, output: RequestOutput, one: CompletionOutput, *, echo: bool, offset: int = 0
    ) -> CompletionLogprobs | None:
        """Log-probabilities of the new tokens, preceded by the prompt's if `echo`."""
        count = self.request.logprobs
        if count is None:
            return None
        tokens: list[int] = [] if self.scores_only else list(one.token_ids)
        tables: Sequence[Any] = [] if self.scores_only else one.logprobs or []
        if echo:
            tokens = [*output.prompt_token_ids, *tokens]
            tables = [*(output.prompt_logprobs or []), *tables]  # type: ignore[misc]
        if self.request.logprob_token_ids:
            count = -1  # all entries of each table
        return self._format.completion(tokens, tables, count, offset)
