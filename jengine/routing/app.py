"""The router's routes: forwards a request to the best server, or to the next one if that fails.

With prefill servers, one computes the prompt first, and the decode server is told where its blocks
are; if none can, the decode server computes the prompt itself. A request is retried on another
server only before the first byte of its response has been forwarded. While no server is up, prompts
wait for one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from jengine.client.errors import ServerFailed
from jengine.errors import RETRY_AFTER, ConfigError
from jengine.routing.admin import Admin
from jengine.routing.error_answers import body_of, failed
from jengine.routing.exchange import HOP, Reply, encoded, watch
from jengine.routing.prefill import GENERATE, fields_of, gone_on, prompt_only, told_in
from jengine.routing.server_pool import Backend, ServerPool, pieces_of

logger = logging.getLogger(__name__)
# Seconds between retries while no server is up.
GLANCE = 0.25


class RouterApp:
    """Forwards each request to a server and streams the answer back."""

    def __init__(
        self,
        workers: ServerPool,
        prefillers: ServerPool,
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
        """Check the health of all servers periodically."""
        pools = (self.workers, self.prefillers)
        await asyncio.gather(*(watch(pool, self._health_every) for pool in pools))

    async def health(self, request: Request) -> Response:
        """Answer whether any server is up."""
        is_up = any(one.is_up for one in self.workers.backends)
        return Response(status_code=200 if is_up else 503)

    async def generate(self, request: Request) -> Response:
        """Handle a request with a prompt: prefill servers first, if there are any."""
        try:
            data = await body_of(request)
        except ConfigError as error:
            return failed(413, str(error))
        body = fields_of(data)
        if body is None:
            return await self._passed_on(request, data)
        pieces = pieces_of(body)
        if self.prefillers.backends and body.get("kv_transfer_params") is None:
            said = await self._prefilled(request, body, pieces)
            if said:
                data = gone_on(body, said)
        return await self._passed_on(request, data, pieces, self._wait_seconds)

    async def other(self, request: Request) -> Response:
        """Forward a request without a prompt to any server that is up."""
        try:
            return await self._passed_on(request, await body_of(request))
        except ConfigError as error:
            return failed(413, str(error))

    async def _prefilled(
        self, request: Request, body: dict[str, Any], pieces: list[bytes]
    ) -> dict[str, Any] | None:
        """Have a prefill server compute the prompt. Returns its `kv_transfer_params`; None if no
        server did."""
        data, tried = prompt_only(body), list[Backend]()
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
            if reply.status != 200:  # the decode server reports the error
                return None
            return told_in(answer)
        return None

    async def _passed_on(
        self, request: Request, data: bytes, pieces: Sequence[bytes] = (), seconds: float = 0.0
    ) -> Response:
        """Forward a request, waiting at most `seconds` for a server that is up."""
        end = time.monotonic() + seconds
        while isinstance(begun := await self._begun(request, data, pieces), str):
            if time.monotonic() >= end or await request.is_disconnected():
                return failed(503, f"no server answers: {begun}", {"Retry-After": str(RETRY_AFTER)})
            await asyncio.sleep(GLANCE)
        return begun

    async def _begun(
        self, request: Request, data: bytes, pieces: Sequence[bytes]
    ) -> PassedOn | str:
        """The first response that begins, or the last server's failure."""
        tried, problem = list[Backend](), "there is none"
        while (backend := self.workers.best(pieces, tried)) is not None:
            tried.append(backend)
            reply = Reply()
            with ExitStack() as stack:
                stack.enter_context(backend.reading(pieces))
                try:
                    if not await has_begun(request, reply, backend, data):
                        return "the client has gone"
                except ServerFailed as error:
                    if backend.is_up:
                        logger.warning("%s does not answer: %s", backend.address, error)
                    backend.is_up, problem = False, str(error)
                    continue
                except asyncio.CancelledError:
                    reply.cancel()
                    raise
                return PassedOn(reply, stack.pop_all())
        return problem


async def has_begun(request: Request, reply: Reply, backend: Backend, data: bytes) -> bool:
    """Send the request and wait for the response's head, or for the whole of a response without a
    stream. Returns False if the client disconnected; the server sees its connection closed."""
    beginning = asyncio.ensure_future(reply.begin(backend, head_and(request, backend, data)))
    leaving = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait((beginning, leaving), return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            await beginning
            return True
        reply.cancel()
        return False
    finally:
        leaving.cancel()
        beginning.cancel()


async def left(request: Request) -> None:
    """Return when the client disconnects. Its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class PassedOn(StreamingResponse):
    """A server's response being streamed to the client. Counts as load of that server until it has
    been sent, or the client has disconnected."""

    def __init__(self, reply: Reply, open_request: ExitStack) -> None:
        # Keeps Content-Length, by which clients notice a truncated response.
        passed = {name for name in reply.headers if name not in HOP} | {"content-length"}
        headers = {name: reply.headers[name] for name in passed & reply.headers.keys()}
        super().__init__(reply.parts(), status_code=reply.status, headers=headers)
        self._reply = reply
        self._open_request = open_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open_request:
            try:
                await super().__call__(scope, receive, send)
            finally:
                self._reply.cancel()


def head_and(request: Request, backend: Backend, data: bytes) -> bytes:
    """The forwarded request's bytes: the client's headers with this body."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return encoded(backend, request.method, path, dict(request.headers), data)


def make_router(
    workers: list[str],
    prefillers: list[str],
    *,
    health_every: float = 2.0,
    prefill_seconds: float = 600.0,
    wait_seconds: float = 30.0,
    admin_key: str | None = None,
) -> Starlette:
    """Build the router in front of these servers. `wait_seconds`: the longest wait of a prompt for
    an available server. With an admin key servers may be added and removed."""
    pools = {"decode": ServerPool(workers), "prefill": ServerPool(prefillers)}
    router = RouterApp(
        pools["decode"], pools["prefill"], health_every, prefill_seconds, wait_seconds
    )

    @asynccontextmanager
    async def watched(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(router.watch())
        yield
        watching.cancel()

    routes = [
        Route("/health", router.health),
        *Admin(pools, admin_key).routes(),
        *(Route(path, router.generate, methods=["POST"]) for path in GENERATE),
        Route("/{path:path}", router.other, methods=["GET", "POST", "DELETE"]),
    ]
    return Starlette(routes=routes, lifespan=watched)
