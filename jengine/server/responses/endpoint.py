"""/v1/responses: input items in, output items out, JSON or streamed.

A response runs as the equivalent chat completion. Finished ones are stored for a while, for GET and
previous_response_id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.outputs import RequestOutput
from jengine.sampling_params import SamplingParams
from jengine.server.chat.endpoint import ChatJob
from jengine.server.chat.fields import check_chat
from jengine.server.errors import ApiError, api_error
from jengine.server.http.json_response import json_response
from jengine.server.http.sse import Chunks
from jengine.server.responses.fields import CHAT_NAMES, ResponsesRequest, as_chat, check_responses
from jengine.server.responses.input import chat_messages, input_items
from jengine.server.responses.items import Event, Item, new_id
from jengine.server.responses.progress import ResponseProgress
from jengine.server.responses.types import ResponseObject
from jengine.server.serving import everywhere
from jengine.server.serving.generation import Outputs, Prepared, answer, read_request
from jengine.server.serving.response_store import StoredResponse
from jengine.server.serving.service import Service


async def create_response(service: Service, http: Request) -> Response:
    """POST /v1/responses."""
    request = await read_request(service, http, ResponsesRequest, check_responses)
    earlier = await _earlier_items(service, request)
    job = ResponsesJob(service, http, request, earlier)
    try:
        return await answer(service, http, job)
    except BaseException:
        job.progress.give_up()
        raise


async def get_response(service: Service, http: Request) -> Response:
    """GET /v1/responses/{id}."""
    if http.query_params.get("stream") == "true":
        raise ApiError(400, "stream: stored responses are sent whole.", param="stream")
    found = await _stored(service, http.path_params["response_id"])
    return json_response(found.response)


async def delete_response(service: Service, http: Request) -> Response:
    """DELETE /v1/responses/{id}."""
    response_id = http.path_params["response_id"]
    await _stored(service, response_id)
    await everywhere.remove_response(service, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(service: Service, http: Request) -> Response:
    """POST /v1/responses/{id}/cancel: abort a response that is still generated."""
    response_id = http.path_params["response_id"]
    response = (await _stored(service, response_id)).response
    if response.status != "in_progress":
        raise ApiError(
            400, f"The response is {response.status} and cannot be cancelled.", param="response_id"
        )
    await everywhere.abort(service, [response_id])
    return json_response(response)


async def _stored(
    service: Service, response_id: str, param: str = "response_id"
) -> StoredResponse[ResponseObject]:
    found = await everywhere.stored_response(service, response_id, ResponseObject)
    if found is None:
        raise ApiError(
            404,
            f"Response with id '{response_id[:100]}' not found. Responses are kept for a while, "
            "unless store=false.",
            param=param,
        )
    return found


class ResponsesJob:
    """A /v1/responses request, run as a chat completion."""

    stream_end = b""

    def __init__(
        self,
        service: Service,
        http: Request,
        request: ResponsesRequest,
        earlier: Sequence[Item],
    ) -> None:
        """`earlier`: items of the conversation named by previous_response_id."""
        settings = service.settings
        self.stream = bool(request.stream)
        self.places = 1
        self.request_id = new_id("resp")
        items = [*earlier, *input_items(request.input or [])]
        messages = chat_messages(request.instructions, items)
        chat = as_chat(request, messages, service.live.engine.schedule.max_model_len)
        try:
            check_chat(chat, settings)
        except ApiError as error:
            raise error.renamed(CHAT_NAMES) from error
        self.chat = ChatJob(service, http, chat)
        self.client_id = self.chat.client_id
        self.progress = ResponseProgress(
            request, self.request_id, self.chat.model, items, service.responses
        )

    async def prepare(self) -> Prepared:
        try:
            prepared = await self.chat.prepare()
        except ApiError as error:
            raise error.renamed(CHAT_NAMES) from error
        (params,) = prepared.params
        assert isinstance(params, SamplingParams), "responses have no field for a beam search"
        self.progress.prepared(params, self.chat.texts)
        return prepared

    def whole(self, outputs: Sequence[RequestOutput]) -> ResponseObject:
        """Body of the JSON response."""
        self.progress.advance(outputs[0])
        return self.progress.end()[1]

    def chunks(self, outputs: Outputs) -> Chunks:
        return ResponseEvents(self.progress).of(outputs)


async def _earlier_items(service: Service, request: ResponsesRequest) -> list[Item]:
    if request.previous_response_id is None:
        return []
    earlier = await _stored(service, request.previous_response_id, "previous_response_id")
    if earlier.response.status == "in_progress":
        raise ApiError(
            400, "previous_response_id: that response is still in progress. Wait for its end.",
            param="previous_response_id",
        )  # fmt: skip
    return earlier.items


_encoder = msgspec.json.Encoder()


class EventBuilder(Protocol):
    """Builds the events of one response from outputs."""

    def begin(self) -> ResponseObject:
        """The response object before its first item."""
        ...

    def advance(self, output: RequestOutput) -> list[Event]:
        """Events of the next engine output."""
        ...

    async def count_reasoning(self) -> None:
        """Tokenize the reasoning to count it; to be called before `end`."""
        ...

    def end(self) -> tuple[list[Event], ResponseObject]:
        """Return the closing events, and the completed response."""
        ...

    def fail(self, message: str) -> ResponseObject:
        """Return the failed response."""
        ...

    def give_up(self) -> None:
        """Cancelled by disconnect or error. No-op after `end`."""
        ...


class ResponseEvents:
    """SSE events of one response. `response.created` is sent with the first output."""

    def __init__(self, progress: EventBuilder) -> None:
        self._progress = progress
        self._number = 0

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all events. An error before the first one is raised; later ones become events."""
        progress, begun = self._progress, False
        try:
            async for _, output in outputs:
                if not begun:
                    begun = True
                    response = progress.begin()
                    yield self._about("response.created", response)
                    yield self._about("response.in_progress", response)
                for event in progress.advance(output):
                    yield self._event(event)
            await progress.count_reasoning()
            last, response = progress.end()
            for event in last:
                yield self._event(event)
            name = "completed" if response.status == "completed" else "incomplete"
            yield self._about(f"response.{name}", response)
        except Exception as error:
            if not begun:
                raise
            response = progress.fail(api_error(error).body.error.message)
            yield self._about("response.failed", response)
        finally:
            progress.give_up()
            await outputs.aclose()

    def _about(self, name: str, response: ResponseObject) -> bytes:
        return self._event({"type": name, "response": response})

    def _event(self, event: dict[str, Any]) -> bytes:
        data = _encoder.encode({**event, "sequence_number": self._number})
        self._number += 1
        return b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"
