"""Authentication: an ASGI middleware that denies by default.

In: requests, and the access that each route declares. Out: the request, or 401 or 403. Every path
that is not declared public needs a key, unknown paths included. The given key is compared with all
keys, each in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from enum import Enum

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jengine.server.errors import ApiError
from jengine.server.http.root_path import route_path


class Access(Enum):
    """Access level of a route."""

    PUBLIC = "anyone"
    KEY = "who has the API key, if one is set"
    ADMIN = "who has the admin key; nobody if none is set"


class Keys:
    """API keys, kept as digests."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def has(self, key: str | None) -> bool:
        """Whether `key` is one of them. All keys are compared, in constant time."""
        given = _digest(key or "")
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found and key is not None


class Authentication:
    """ASGI middleware: passes requests to public routes and those that carry the route's key."""

    def __init__(
        self, app: ASGIApp, access: Callable[[str], Access], api_keys: Keys, admin_keys: Keys
    ) -> None:
        self.app = app
        self.access = access
        self.api_keys = api_keys
        self.admin_keys = admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await refusal.response(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        access = self.access(route_path(scope))
        given = bearer_token(Headers(scope=scope))
        if access is Access.PUBLIC:
            return None
        if access is Access.ADMIN:
            return None if self.admin_keys.has(given) else self._no_admin()
        if not self.api_keys or self.api_keys.has(given) or self.admin_keys.has(given):
            return None
        what = "No API key was given" if given is None else "This API key is not known"
        return ApiError(
            401,
            f"{what}. Send the header 'Authorization: Bearer KEY' with a key of this server.",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _no_admin(self) -> ApiError:
        if not self.admin_keys:
            return ApiError(
                403, "Admin routes are off. Start the server with --admin-key KEY to use them."
            )
        return ApiError(
            403, "This route needs the admin key: send the header 'Authorization: Bearer KEY'."
        )


def bearer_token(headers: Headers) -> str | None:
    """Token of the Authorization header, or of Anthropic's x-api-key."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
