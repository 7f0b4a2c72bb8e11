"""Admin routes that add and remove the servers of a running router.

In: a server's URL and role, with the admin key. Out: the servers' states. A removed server finishes
its open requests; a new one gets requests after its first successful health check. Without an admin
key the routes do not exist.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jengine.client.address import Address
from jengine.errors import ConfigError
from jengine.routing.error_answers import body_of, failed
from jengine.routing.exchange import look
from jengine.routing.server_pool import Backend, ServerPool

PATH = "/route/servers"
ROLES = ("decode", "prefill")
EXPECTED = 'expected {"url": "http://host:8000", "role": "decode" or "prefill"}'
# Timeout of the first health check of an added server, in seconds.
FIRST_LOOK = 5.0


class Admin:
    """Adds servers to the router's pools and removes them."""

    def __init__(self, pools: dict[str, ServerPool], key: str | None) -> None:
        """`pools`: by role."""
        self._pools = pools
        self._key = key

    def routes(self) -> list[Route]:
        return [Route(PATH, self.serve, methods=["GET", "POST", "DELETE"])]

    async def serve(self, request: Request) -> Response:
        """Handle GET (list servers), POST (add one) and DELETE (remove one)."""
        if not self._is_allowed(request):
            return failed(403, "the router's servers: start it with --admin-key KEY, and send the "
                          "header 'Authorization: Bearer KEY'.")  # fmt: skip
        if request.method == "GET":
            return JSONResponse({"servers": self.servers()})
        try:
            url, role = named(await body_of(request))
        except ConfigError as error:
            return failed(400, str(error))
        pool = self._pools[role]
        if request.method == "DELETE":
            return self._removed(pool, url)
        backend = pool.add(url)
        await look(backend, FIRST_LOOK)
        return JSONResponse(said(backend, role))

    def servers(self) -> list[dict[str, Any]]:
        """All servers, including removed ones that still answer requests."""
        return [
            said(backend, role)
            for role, pool in self._pools.items()
            for backend in (*pool.backends, *pool.leaving)
        ]

    def _is_allowed(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if self._key is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self._key.encode())

    def _removed(self, pool: ServerPool, url: str) -> Response:
        backend = pool.remove(url)
        if backend is None:
            return failed(404, f"{url} is none of the servers of this role.")
        return JSONResponse({"url": str(backend.address), "open_requests": backend.num_open})


def named(data: bytes) -> tuple[str, str]:
    """The URL and the role in a request's body. Raises ConfigError."""
    try:
        body = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{EXPECTED}; found no JSON ({error}).") from error
    if not isinstance(body, dict) or not {"url"} <= body.keys() <= {"url", "role"}:
        raise ConfigError(f"{EXPECTED}; found {body!r:.200}.")
    url, role = body["url"], body.get("role", ROLES[0])
    if not isinstance(url, str) or role not in ROLES:
        raise ConfigError(f"{EXPECTED}; found {body!r:.200}.")
    Address.of(url)
    return url, role


def said(backend: Backend, role: str) -> dict[str, Any]:
    """A server's state, as the routes report it."""
    return {
        "url": str(backend.address), "role": role, "is_up": backend.is_up,
        "leaves": backend.leaves, "open_requests": backend.num_open,
    }  # fmt: skip
