"""Answers one HTTP request: admission, preparation, generation, cancellation.

In: a job, which knows its endpoint's JSON. Out: a JSON response or a stream. Shared by both: queue
places, deadlines, disconnects, failed outputs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.adapters import LoRARequest
from jengine.beam_search import BeamSearchParams
from jengine.engine.timing import Arrival
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.pooling_params import PoolingParams
from jengine.prompts import TokensPrompt
from jengine.sampling_params import SamplingParams
from jengine.server.errors import ApiError
from jengine.server.http.body import read_body
from jengine.server.http.disconnect import ended, unless_client_leaves
from jengine.server.http.request_head import deadline_of
from jengine.server.http.sse import Chunks, stream_response
from jengine.server.phase import Phase
from jengine.server.serving.admission import Ticket
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=msgspec.Struct)

# Responses of more tokens are encoded in a thread, not on the event loop.
WRITTEN_HERE = 2000
# (prompt index, output) as they grow.
Outputs = AsyncGenerator[tuple[int, RequestOutput], None]
Write = Callable[[Sequence[RequestOutput]], Response]
# Outputs of one prompt.
AnyStream = AsyncGenerator[RequestOutput, None]


class OutputSource(Protocol):
    """Outputs of a request, each with the index of its prompt."""

    async def __anext__(self) -> tuple[int, RequestOutput]: ...
    async def aclose(self) -> None: ...


class Prepared(NamedTuple):
    """Prompts and parameters that a job submits to the engine."""

    prompts: Sequence[TokensPrompt]
    params: Sequence[SamplingParams | BeamSearchParams | PoolingParams]  # per prompt
    priority: int = 0
    adapter: LoRARequest | None = None


class EndpointJob(Protocol):
    """A decoded and validated request of one endpoint."""

    client_id: str  # the client's id, for the response header
    request_id: str
    stream: bool
    places: int  # completions, over all prompts
    stream_end: bytes  # end of a stream

    async def prepare(self) -> Prepared:
        """Render and tokenize the prompts."""
        ...

    def whole(self, outputs: Sequence[RequestOutput]) -> msgspec.Struct:
        """Body of the JSON response, from the final output of each prompt."""
        ...

    def chunks(self, outputs: Outputs) -> Chunks:
        """Stream events, without [DONE]."""
        ...


async def read_request(
    service: Service, http: Request, kind: type[R], check: Callable[[R, ServerSettings], None]
) -> R:
    """Decode and validate the body. Raises ApiError 503 if the server takes no requests."""
    service.check_serving()
    settings = service.settings
    request = await read_body(http, kind, strict=settings.strict_requests)
    check(request, settings)
    return request


async def answer(
    service: Service, http: Request, job: EndpointJob, write: Write | None = None
) -> Response:
    """Run a job and return its response. `write` formats final outputs other than as JSON."""
    live = service.check_serving()
    deadline = deadline_of(http, service.settings.request_timeout)
    ticket = live.admission.enter(job.places)
    arrival = arrival_of(http)
    least_urgent = getattr(http.state, "least_urgent", None)
    outputs = generated(service, job, ticket, deadline, arrival, least_urgent)
    try:
        if job.stream:
            interval = service.settings.sse_keep_alive_interval
            response = await stream_response(http.receive, job.chunks(outputs), interval)
            response.when_over = ticket.release
            response.end = job.stream_end
        else:
            finals = await unless_client_leaves(http.receive, collected(outputs))
            if write is None:
                response = Response(await written(job, finals), media_type="application/json")
            else:
                response = await asyncio.to_thread(write, finals)
            ticket.release()
    except BaseException:
        ticket.release()
        raise
    response.headers["X-Request-Id"] = job.client_id
    return response


def arrival_of(http: Request) -> Arrival:
    """Arrival time, `traceparent` and requested data-parallel rank."""
    rank = http.headers.get("X-data-parallel-rank", "")
    replica = int(rank) if rank.isdecimal() else None  # as in vLLM, ignored if malformed
    return Arrival(time.monotonic(), http.headers.get("traceparent"), replica)


async def written(job: EndpointJob, finals: Sequence[RequestOutput]) -> bytes:
    """Encode the JSON body, a long one in a thread."""

    def write() -> bytes:
        return msgspec.json.encode(job.whole(finals))

    tokens = sum(len(one.token_ids) for output in finals for one in output.outputs)
    tokens += sum(output.pooled.size for output in finals if output.pooled is not None)
    return write() if tokens <= WRITTEN_HERE else await asyncio.to_thread(write)


async def collected(outputs: Outputs) -> list[RequestOutput]:
    """Consume a stream of outputs. Returns the final one of each prompt, in order."""
    finals = {index: output async for index, output in outputs}
    return [finals[index] for index in sorted(finals)]


async def generated(
    service: Service,
    job: EndpointJob,
    ticket: Ticket,
    deadline: float | None,
    arrival: Arrival,
    least_urgent: int | None = None,
) -> Outputs:
    """Prepare and run a job, at most as urgent as `least_urgent`. Closing the generator
    aborts its requests."""
    async with asyncio.timeout_at(deadline):
        asked = await job.prepare()
    ticket.bring(sum(len(prompt["prompt_token_ids"]) for prompt in asked.prompts))
    _log(service, job, asked)
    priority = asked.priority if least_urgent is None else max(asked.priority, least_urgent)
    streams = [
        service.generate(prompt, params, job.request_id, priority, arrival, asked.adapter)
        for prompt, params in zip(asked.prompts, asked.params, strict=True)
    ]
    source: OutputSource = Single(streams[0]) if len(streams) == 1 else merged(streams)
    begun = False
    try:
        while (item := await next_of(source, deadline)) is not None:
            if not begun:
                ticket.started()
            refuse_failed(item[1], unanswered=not begun and service.phase is Phase.DRAINING)
            begun = True
            yield item
    finally:
        await source.aclose()
        for stream in streams:
            await stream.aclose()


async def next_of(source: OutputSource, deadline: float | None) -> tuple[int, RequestOutput] | None:
    """Next item before the deadline; None at the end of the stream."""
    try:
        if deadline is None:
            return await anext(source)
        async with asyncio.timeout_at(deadline):
            return await anext(source)
    except StopAsyncIteration:
        return None


class Single:
    """Outputs of one prompt. A class rather than a generator, which would cost one more frame per
    token."""

    def __init__(self, stream: AnyStream) -> None:
        self._stream = stream

    async def __anext__(self) -> tuple[int, RequestOutput]:
        return 0, await self._stream.asend(None)

    async def aclose(self) -> None:
        """Abort the request."""
        await self._stream.aclose()


async def merged(streams: Sequence[AnyStream]) -> Outputs:
    """Interleave the outputs of several prompts as they come. The first error aborts all."""
    waiting: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue()

    async def forward(index: int, stream: AnyStream) -> None:
        try:
            async for output in stream:
                waiting.put_nowait((index, output))
            waiting.put_nowait((index, None))
        except Exception as error:  # noqa: BLE001 - raised for the reader of all
            waiting.put_nowait((index, error))

    tasks = [asyncio.ensure_future(forward(*item)) for item in enumerate(streams)]
    left = len(streams)
    try:
        while left:
            index, item = await waiting.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, item
    finally:
        await ended(*tasks)


def refuse_failed(output: RequestOutput, *, unanswered: bool) -> None:
    """Raise the error of a failed request, or of one that a shutdown ended unanswered."""
    if output.error is not None:
        if output.refused:
            logger.warning("Request %s is refused: %s", output.request_id, output.error)
            raise RequestError(output.error)
        raise ApiError(503 if output.engine_lost else 500, output.error)
    aborted = any(one.finish_reason == "abort" for one in output.outputs)
    if aborted and unanswered and not any(one.token_ids for one in output.outputs):
        raise ApiError(503, "The server shut down before this request had begun.")


def _log(service: Service, job: EndpointJob, asked: Prepared) -> None:
    if service.settings.enable_log_requests:
        params: Any = asked.params[0] if asked.params else None
        tokens = [len(prompt["prompt_token_ids"]) for prompt in asked.prompts]
        logger.info("Received request %s: prompt tokens: %s, params: %s",
                    job.request_id, tokens[:16], params)  # fmt: skip
