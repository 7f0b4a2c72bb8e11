"""Builds one response incrementally, for JSON and streams alike.

In: outputs of the engine. Out: events, and the response object with its items and usage, which is
also what is stored. Must not know HTTP.
"""

from __future__ import annotations

import time
from typing import Any

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.sampling_params import SamplingParams
from jengine.server.chat.texts import ChatTexts
from jengine.server.responses.fields import ResponsesRequest
from jengine.server.responses.items import Event, Item, OutputItems
from jengine.server.responses.types import (
    InputDetails,
    OutputDetails,
    ResponseObject,
    ResponseUsage,
    settings_of,
)
from jengine.server.serving.response_store import ResponseStore

# Finish reason -> response status; others are completed.
_STATUSES = {"length": "incomplete", "abort": "cancelled"}


class ResponseProgress:
    """Builds one response incrementally. `items`: the conversation before it."""

    def __init__(
        self,
        request: ResponsesRequest,
        response_id: str,
        model: str,
        items: list[Item],
        store: ResponseStore[ResponseObject],
    ) -> None:
        self._request = request
        self._store = store
        self._conversation = items
        self._head: dict[str, Any] = {
            "id": response_id,
            "created_at": int(time.time()),
            "model": model,
            **settings_of(request),
        }
        self._items = OutputItems()
        self._output: RequestOutput | None = None
        self._tokens = 0
        self._reasoning: int | None = None  # once counted
        self._is_prepared = self._over = False

    def prepared(self, params: SamplingParams, texts: ChatTexts) -> None:
        """Note the sampling parameters; from now on GET finds the response."""
        self._texts = texts
        self._answer = texts.answer()
        self._head |= {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_output_tokens": params.max_tokens,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
        }
        self._is_prepared = True
        self._keep(self.begin())

    def begin(self) -> ResponseObject:
        return ResponseObject(**self._head, status="in_progress", output=[])

    def advance(self, output: RequestOutput) -> list[Event]:
        """Events of the next output, which may be the whole answer."""
        one = output.outputs[0]
        self._output = output
        self._tokens += len(one.token_ids)
        scores = self._texts.logprobs(one)
        if scores is not None:
            self._items.score(scores.content)
        ends = one.finish_reason is not None
        parts = self._answer.parts(one, ends=ends)
        return [event for part in parts for event in self._items.add(part)]

    async def count_reasoning(self) -> None:
        """Tokenize the reasoning in a thread to count it; to be called before `end`."""
        self._reasoning = await self._texts.counted([self._answer])

    def end(self) -> tuple[list[Event], ResponseObject]:
        reason = self._last.finish_reason or "abort"
        status = _STATUSES.get(reason, "completed")
        response, events = self._closed(status)
        return events, response

    def fail(self, message: str) -> ResponseObject:
        error = {"code": "server_error", "message": message}
        return self._closed("failed", error=error)[0]

    def give_up(self) -> None:
        """Mark as cancelled, after disconnect or error. No-op after `end`."""
        if self._is_prepared and not self._over:
            self._closed("cancelled")

    @property
    def _last(self) -> CompletionOutput:
        assert self._output is not None, "a response ends after its first output"
        return self._output.outputs[0]

    def _closed(self, status: str, **more: Any) -> tuple[ResponseObject, list[Event]]:
        self._over = True
        events = list(self._items.close("completed" if status == "completed" else "incomplete"))
        if status == "incomplete":
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        if status == "completed":
            more["completed_at"] = int(time.time())
        response = ResponseObject(
            **self._head, status=status, output=self._items.items, usage=self._usage(), **more
        )
        self._keep(response)
        return response, events

    def _usage(self) -> ResponseUsage | None:
        if self._output is None:
            return None
        read = len(self._output.prompt_token_ids)
        reasoning = self._reasoning
        if reasoning is None:
            reasoning = self._texts.reasoning_tokens([self._answer])
        return ResponseUsage(
            input_tokens=read,
            input_tokens_details=InputDetails(
                max(self._output.num_cached_tokens, 0),
                self._texts.created_cache_tokens(self._output),
            ),
            output_tokens=self._tokens,
            output_tokens_details=OutputDetails(min(reasoning or 0, self._tokens)),
            total_tokens=read + self._tokens,
        )

    def _keep(self, response: ResponseObject) -> None:
        if self._request.is_stored:
            self._store.put(response, [*self._conversation, *response.output])
