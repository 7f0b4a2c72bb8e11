"""/v1/messages and /v1/messages/count_tokens, in the form of Anthropic's API.

A message runs as the equivalent chat completion; errors have Anthropic's form.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.server.chat.answers import ChatAnswer
from jengine.server.chat.endpoint import ChatJob
from jengine.server.chat.fields import check_chat
from jengine.server.errors import ApiError, api_error
from jengine.server.http.body import read_body
from jengine.server.http.disconnect import unless_client_leaves
from jengine.server.http.json_response import json_response
from jengine.server.http.sse import Chunks
from jengine.server.messages.fields import CHAT_NAMES, CountRequest, MessagesRequest, as_chat
from jengine.server.responses.items import new_id
from jengine.server.serving.generation import Outputs, Prepared, answer
from jengine.server.serving.service import Service
from jengine.text.chat_parser import ChatPart, Content, Reasoning, ToolArguments, ToolStart

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_encoder = msgspec.json.Encoder()


class MessageUsage(msgspec.Struct):
    """Anthropic's usage: input tokens outside the cache, cache reads and writes, output tokens."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class MessageObject(msgspec.Struct, kw_only=True):
    """Anthropic's message, also as its `message_start` form."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


async def messages(service: Service, http: Request) -> Response:
    """POST /v1/messages."""
    return await _answered(http, _message(service, http))


async def count_tokens(service: Service, http: Request) -> Response:
    """POST /v1/messages/count_tokens: the number of prompt tokens."""
    return await _answered(http, _count(service, http))


async def _message(service: Service, http: Request) -> Response:
    service.check_serving()
    request = await read_body(http, MessagesRequest, strict=service.settings.strict_requests)
    return await answer(service, http, MessagesJob(service, http, request))


async def _count(service: Service, http: Request) -> Response:
    service.check_serving()
    request = await read_body(http, CountRequest, strict=False)
    rendered = _chat_job(service, http, request).rendered()
    prompt = await unless_client_leaves(http.receive, rendered)
    return json_response({"input_tokens": len(prompt["prompt_token_ids"])})


async def _answered(http: Request, work: Awaitable[Response]) -> Response:
    """Await the response; errors take Anthropic's form."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the table of errors knows them all
        found = api_error(error, getattr(http.state, "fields", frozenset())).renamed(CHAT_NAMES)
        response = json_response(_error(found), found.status)
        response.headers.update(found.headers)
        return response


def _error(error: ApiError) -> dict[str, Any]:
    kind = _KINDS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.body.error.message}}


def _chat_job(service: Service, http: Request, request: CountRequest) -> ChatJob:
    chat = as_chat(request)
    check_chat(chat, service.settings)
    return ChatJob(service, http, chat)


class MessagesJob:
    """A request for a message, run as a chat completion."""

    stream_end = b""

    def __init__(self, service: Service, http: Request, request: MessagesRequest) -> None:
        self.stream = bool(request.stream)
        self.places = 1
        self.request_id = new_id("msg")
        self.chat = _chat_job(service, http, request)
        self.client_id = self.chat.client_id
        self._splits_cached = service.settings.enable_prompt_tokens_details

    async def prepare(self) -> Prepared:
        return await self.chat.prepare()

    def whole(self, outputs: Sequence[RequestOutput]) -> MessageObject:
        """Body of the JSON response."""
        output, blocks, reader = outputs[0], Blocks(), self.chat.texts.answer()
        one = output.outputs[0]
        for part in reader.parts(one, ends=True):
            list(blocks.add(part))
        list(blocks.end())
        message = self._begun(output)
        message.content = blocks.blocks
        message.stop_reason, message.stop_sequence = _stop(one, reader)
        message.usage.output_tokens = len(one.token_ids)
        return message

    def chunks(self, outputs: Outputs) -> Chunks:
        return self._events(outputs)

    async def _events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        begun = False
        try:
            async for event in self._told(outputs):
                begun = True
                yield _encoded(event)
        except Exception as error:
            if not begun:
                raise
            yield _encoded(_error(api_error(error)))
        finally:
            await outputs.aclose()

    async def _told(self, outputs: Outputs) -> AsyncGenerator[Event, None]:
        blocks, reader, tokens = Blocks(), self.chat.texts.answer(), 0
        last: CompletionOutput | None = None
        begun: MessageObject | None = None
        async for _, output in outputs:
            if begun is None:
                begun = self._begun(output)
                yield {"type": "message_start", "message": begun}
            last = output.outputs[0]
            tokens += len(last.token_ids)
            for part in reader.parts(last, ends=last.finish_reason is not None):
                for event in blocks.add(part):
                    yield event
        for event in blocks.end():
            yield event
        assert last is not None and begun is not None, "an answer has an output"
        reason, sequence = _stop(last, reader)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = msgspec.structs.replace(begun.usage, output_tokens=tokens)
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}

    def _begun(self, output: RequestOutput) -> MessageObject:
        cached = created = 0
        if self._splits_cached:
            cached = max(output.num_cached_tokens, 0)
            created = self.chat.texts.created_cache_tokens(output)
        read = len(output.prompt_token_ids) - cached - created
        usage = MessageUsage(read, 0, created, cached)
        return MessageObject(id=self.request_id, model=self.chat.model, content=[], usage=usage)


def _stop(one: CompletionOutput, reader: ChatAnswer) -> tuple[str, str | None]:
    """Return Anthropic's stop_reason and stop_sequence."""
    reason = reader.finish_reason(one.finish_reason) or "stop"
    if reason == "stop" and isinstance(one.stop_reason, str):
        return "stop_sequence", one.stop_reason
    return _REASONS.get(reason, "end_turn"), None


def _encoded(event: Event) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n"


Event = dict[str, Any]
Block = dict[str, Any]


class Blocks:
    """Content blocks of an Anthropic stream, in order; at most the last one is open."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._texts: list[str] = []  # of the open block
        self._is_open = False

    def add(self, part: ChatPart) -> Iterator[Event]:
        """Yield the events for the next message part."""
        match part:
            case Content(text):
                yield from self._open({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolStart(_, call_id, name):
                yield from self.close()
                yield from self._open(
                    {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                )
                return
            case ToolArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
        self._texts.append(part.text)

    def close(self) -> Iterator[Event]:
        """Yield the events that close the open block, if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        block, text = self.blocks[-1], "".join(self._texts)
        if block["type"] == "tool_use":
            block["input"] = _object(text)
        else:
            block[block["type"]] = text
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def end(self) -> Iterator[Event]:
        """Yield the last block's closing events. A message without content gets one empty text
        block."""
        if not self.blocks:
            yield from self._open({"type": "text", "text": ""})
        yield from self.close()

    def _open(self, block: Block) -> Iterator[Event]:
        """Start a block of this kind, unless the open one is of that kind."""
        if self._is_open and self.blocks[-1]["type"] == block["type"]:
            return
        yield from self.close()
        self._is_open = True
        self._texts = []
        self.blocks.append(block)
        yield {
            "type": "content_block_start",
            "index": len(self.blocks) - 1,
            "content_block": dict(block),
        }

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _object(text: str) -> dict[str, Any]:
    """Parse a call's arguments; {} if they were cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
