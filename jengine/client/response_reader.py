"""Incremental HTTP/1.1 response parser.

In: bytes in any pieces. Out: status, headers, body bytes as they arrive, completeness. Must not
know sockets.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_LIMIT = 64 * 1024


class BadResponse(ValueError): ...


class ResponseReader:
    """One response. `stays_open`: the connection can be reused afterwards.

    Args:
        to_head: the request's method is HEAD, so that no body follows the headers.
    """

    def __init__(self, *, to_head: bool = False) -> None:
        self._to_head = to_head
        self.status = 0  # until the final headers have arrived
        self.headers: dict[str, str] = {}
        self.complete = False
        self.stays_open = False
        self._rest = b""
        self._left = 0
        self._read: Callable[[], bytes] = self._head

    def feed(self, data: bytes) -> bytes:
        """Add bytes. Returns the body bytes that became available."""
        self._rest = self._rest + data if self._rest else data
        return self._read()

    def end(self) -> None:
        """Note that the connection was closed, which completes a body without a length."""
        self.complete = self.complete or self._read == self._until_closed

    def _head(self) -> bytes:
        end = self._rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self._rest) > HEAD_LIMIT:
                raise BadResponse(f"headers of more than {HEAD_LIMIT} bytes")
            return b""
        first, *lines = self._rest[:end].decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise BadResponse(f"expected an HTTP/1.1 response, got {first[:100]!r}")
        self._rest = self._rest[end + 4 :]
        if (code := int(status[:3])) < 200:  # an interim response; the real one follows
            return self._head()
        self.status = code
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.stays_open = self.headers.get("connection", "").lower() != "close"
        self._read = self._body()
        return self._read()

    def _body(self) -> Callable[[], bytes]:
        if self._to_head or self.status in (204, 304):  # whatever length the headers name
            return self._counted
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return self._chunked
        if "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            return self._counted
        self.stays_open = False
        return self._until_closed

    def _chunked(self) -> bytes:
        data, at, parts = self._rest, 0, []
        while (line := data.find(b"\r\n", at)) >= 0:
            try:
                size = int(data[at:line].partition(b";")[0], 16)
            except ValueError as error:
                raise BadResponse(f"expected a chunk's size, got {data[at:line][:40]!r}") from error
            if size == 0:
                end = data.find(b"\r\n\r\n", line)  # trailers, if any, are before it
                if end >= 0:
                    self.complete, at = True, end + 4
                break
            end = line + 2 + size
            if end + 2 > len(data):
                break
            parts.append(data[line + 2 : end])
            at = end + 2
        self._rest = data[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _counted(self) -> bytes:
        body, self._rest = self._rest[: self._left], self._rest[self._left :]
        self._left -= len(body)
        self.complete = self._left == 0
        return body

    def _until_closed(self) -> bytes:
        body, self._rest = self._rest, b""
        return body
