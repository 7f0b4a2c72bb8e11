"""Blocking client for one request at a time.

In: an address and an API key. Out: decoded JSON, or streamed chunks. Server errors are raised as
jengine errors.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Generator
from contextlib import closing
from typing import Any

import msgspec

from jengine.client.address import Address
from jengine.client.connection import security_of
from jengine.client.errors import ServerFailed, error_of, message_in
from jengine.client.event_reader import DONE, Chunk, EventReader, read_chunk

# Socket timeout of non-streaming requests. Streams have none: a request may be queued for long.
SECONDS = 60.0
KEY_VARIABLE = "OPENAI_API_KEY"


def key_of(given: str | None) -> str | None:
    """The given API key, or the environment's."""
    return given or os.environ.get(KEY_VARIABLE) or None


class Server:
    """An OpenAI-compatible server."""

    def __init__(
        self, address: Address, api_key: str | None = None, *, insecure: bool = False
    ) -> None:
        self.address = address
        self._security = security_of(address, insecure)
        self.headers = {"Accept": "*/*"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def get(self, route: str) -> Any:
        """GET a route and decode its JSON."""
        with closing(self._connect(SECONDS)) as connection:
            body = self._ask(connection, "GET", route, None).read()
        try:
            return json.loads(body)
        except ValueError as error:
            raise ServerFailed(f"{self.address}{route} is not JSON: {body[:100]!r}") from error

    def text(self, route: str) -> str:
        with closing(self._connect(SECONDS)) as connection:
            return self._ask(connection, "GET", route, None).read().decode()

    def models(self) -> list[dict[str, Any]]:
        """Models listed by /v1/models. Raises ServerFailed if there are none."""
        found = self.get("/v1/models")
        listed = found.get("data") if isinstance(found, dict) else None
        if not isinstance(listed, list) or not listed:
            raise ServerFailed(f"{self.address}/v1/models lists no model.")
        return listed

    def stream(self, route: str, body: dict[str, Any]) -> Generator[Chunk]:
        """POST a request and yield its chunks. Closing the generator closes the connection, which
        aborts the request."""
        with closing(self._connect(None)) as connection:
            response = self._ask(connection, "POST", route, body)
            reader = EventReader()
            while data := self._more(response):
                for event in reader.feed(data):
                    if event == DONE:
                        return
                    yield self._chunk(event)
        raise ServerFailed(f"{self.address} ended its answer before it was complete.")

    def _connect(self, seconds: float | None) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        if self._security is None:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._security)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, route: str, body: Any
    ) -> http.client.HTTPResponse:
        data = None if body is None else msgspec.json.encode(body)
        headers = self.headers if data is None else {**self.headers, **JSON}
        try:
            connection.request(method, self.address.path(route), data, headers)
            response = connection.getresponse()
            said = b"" if response.status < 400 else response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"{self.address} cannot be reached: {error}") from error
        if response.status >= 400:
            raise error_of(response.status, said, str(self.address))
        return response

    def _more(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read1(65536)
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"{self.address} closed the connection: {error}") from error

    def _chunk(self, event: bytes) -> Chunk:
        try:
            chunk = read_chunk(event)
        except msgspec.DecodeError as error:
            raise ServerFailed(f"{self.address} sent {event[:100]!r}: {error}") from error
        if chunk.error is not None:
            raise ServerFailed(f"{self.address}: {message_in(chunk.error)}")
        return chunk


JSON = {"Content-Type": "application/json"}
