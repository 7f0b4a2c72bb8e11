"""The router's routes: a request goes to the server that fits best, or to the next if that fails.

With servers for prefill, one of them computes the prompt first, and the server that goes on is told
where the blocks are. If none does, it computes the prompt itself. A request is sent to another
server only until the first byte of its answer has been passed on; while no server answers at all,
prompts wait for one that comes back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jengine.client.errors import ServerFailed
from jengine.errors import RETRY_AFTER
from jengine.routing.exchange import HOP, Reply, encoded, watch
from jengine.routing.pool import Backend, Pool, pieces_of

logger = logging.getLogger(__name__)
GENERATE = ("/v1/completions", "/v1/chat/completions")
# What a server that computes prompts leaves out: it gives one token, at once.
ONLY_WHOLE = ("stream_options", "min_tokens")
MOST_BODY = 64 * 2**20  # bytes
# Seconds between two attempts of a prompt for which no server was there.
GLANCE = 0.25


class Router:
    """Passes requests on."""

    def __init__(
        self,
        workers: Pool,
        prefillers: Pool | None,
        health_every: float,
        prefill_seconds: float,
        wait_seconds: float,
    ) -> None:
        self.workers = workers
        self.prefillers = prefillers
        self._health_every = health_every
        self._prefill_seconds = prefill_seconds
        self._wait_seconds = wait_seconds

    async def watch(self) -> None:
        """Know which servers are up."""
        pools = [self.workers, *([self.prefillers] if self.prefillers else [])]
        await asyncio.gather(*(watch(pool, self._health_every) for pool in pools))

    async def health(self, request: Request) -> Response:
        """Whether any server can answer."""
        is_up = any(one.is_up for one in self.workers.backends)
        return Response(status_code=200 if is_up else 503)

    async def generate(self, request: Request) -> Response:
        """Answer a prompt."""
        data = await request.body()
        if len(data) > MOST_BODY:
            return failed(413, f"a body of {len(data)} bytes; at most {MOST_BODY} are passed on.")
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return await self._passed_on(request, data)
        pieces = pieces_of(body)
        if self.prefillers is not None and body.get("kv_transfer_params") is None:
            said = await self._prefilled(request, body, pieces)
            if said:
                data = json.dumps({**body, "kv_transfer_params": said}).encode()
        return await self._passed_on(request, data, pieces, self._wait_seconds)

    async def other(self, request: Request) -> Response:
        """Anything else goes to a server that answers."""
        return await self._passed_on(request, await request.body())

    async def _prefilled(
        self, request: Request, body: dict[str, Any], pieces: list[bytes]
    ) -> dict[str, Any] | None:
        """What a server that has computed the prompt says of its blocks; None: none has."""
        assert self.prefillers is not None
        short = {name: value for name, value in body.items() if name not in ONLY_WHOLE}
        short |= {"stream": False, "max_tokens": 1, "n": 1}
        if "max_completion_tokens" in short:
            short["max_completion_tokens"] = 1
        short["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
        data, tried = json.dumps(short).encode(), list[Backend]()
        while (backend := self.prefillers.best(pieces, tried)) is not None:
            tried.append(backend)
            reply = Reply()
            try:
                async with asyncio.timeout(self._prefill_seconds):
                    with backend.reading(pieces):
                        await reply.begin(backend, head_and(request, backend, data))
                        answer = await reply.whole()
            except (ServerFailed, TimeoutError) as error:
                reply.cancel()
                backend.is_up = False
                logger.warning("%s did not compute a prompt: %s", backend.address, error)
                continue
            if reply.status != 200:  # the server that goes on says what is wrong
                return None
            said = json.loads(answer).get("kv_transfer_params")
            return said if isinstance(said, dict) else None
        return None

    async def _passed_on(
        self, request: Request, data: bytes, pieces: Sequence[bytes] = (), seconds: float = 0.0
    ) -> Response:
        """A server's answer. Waits so many seconds for a server that answers."""
        end = time.monotonic() + seconds
        while isinstance(begun := await self._begun(request, data, pieces), str):
            if time.monotonic() >= end or await request.is_disconnected():
                return failed(503, f"no server answers: {begun}", {"Retry-After": str(RETRY_AFTER)})
            await asyncio.sleep(GLANCE)
        backend, reply = begun
        # With its length, so that clients notice an answer that was cut off.
        passed = {name for name in reply.headers if name not in HOP} | {"content-length"}
        headers = {name: reply.headers[name] for name in passed & reply.headers.keys()}
        return StreamingResponse(
            counted(backend, pieces, reply), status_code=reply.status, headers=headers
        )

    async def _begun(
        self, request: Request, data: bytes, pieces: Sequence[bytes]
    ) -> tuple[Backend, Reply] | str:
        """An answer that has begun, and its server; or what kept the last one from it."""
        tried, problem = list[Backend](), "there is none"
        while (backend := self.workers.best(pieces, tried)) is not None:
            tried.append(backend)
            reply = Reply()
            try:
                await reply.begin(backend, head_and(request, backend, data))
            except ServerFailed as error:
                if backend.is_up:
                    logger.warning("%s does not answer: %s", backend.address, error)
                backend.is_up, problem = False, str(error)
                continue
            except asyncio.CancelledError:
                reply.cancel()
                raise
            return backend, reply
        return problem


async def counted(
    backend: Backend, pieces: Sequence[bytes], reply: Reply
) -> AsyncGenerator[bytes, None]:
    """The parts of an answer, which is load of its server until it ends."""
    with backend.reading(pieces):
        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                yield part


def head_and(request: Request, backend: Backend, data: bytes) -> bytes:
    """A client's request, with this body, as a server gets it."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return encoded(backend, request.method, path, dict(request.headers), data)


def failed(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error in OpenAI's form."""
    error = {"message": message, "type": "server_error", "param": None, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def make_router(
    workers: list[str],
    prefillers: list[str],
    *,
    health_every: float = 2.0,
    prefill_seconds: float = 600.0,
    wait_seconds: float = 30.0,
) -> Starlette:
    """The application in front of these servers. A prompt waits at most `wait_seconds` for one of
    them to be there."""
    prefill = Pool(prefillers) if prefillers else None
    router = Router(Pool(workers), prefill, health_every, prefill_seconds, wait_seconds)

    @asynccontextmanager
    async def watched(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(router.watch())
        yield
        watching.cancel()

    routes = [
        Route("/health", router.health),
        *(Route(path, router.generate, methods=["POST"]) for path in GENERATE),
        Route("/{path:path}", router.other, methods=["GET", "POST", "DELETE"]),
    ]
    return Starlette(routes=routes, lifespan=watched)
