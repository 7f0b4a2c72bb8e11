"""A request that is forwarded to a replica of a Ray Serve deployment, and its forms.

In: what an ingress got. Out: an ASGI scope, or a body. Knows nothing of Ray.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Scope


@dataclass(frozen=True)
class ForwardedRequest:
    """A request being forwarded to a replica."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    query: bytes = b""

    @property
    def prompt(self) -> str:
        """What Ray's prefix-aware router compares: the prompt as it is written in the body."""
        try:
            found = msgspec.json.decode(self.body, type=Written)
        except msgspec.MsgspecError:
            return self.path
        return bytes(found.messages or found.prompt or found.input or self.path.encode()).decode()


class Written(msgspec.Struct):
    """The prompt fields of a request body, undecoded."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


def scope_of(asked: ForwardedRequest) -> Scope:
    return {
        "type": "http", "method": asked.method, "path": asked.path, "headers": asked.headers,
        "query_string": asked.query,
    }  # fmt: skip


async def form_of(request: Any) -> tuple[str, bytes]:
    """A request with a file as a form, and its content type."""
    line = secrets.token_hex(16)
    fields = request.model_dump(mode="json", exclude={"file"}, exclude_unset=True)
    body = b""
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            body += f'--{line}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
            body += (one if isinstance(one, str) else json.dumps(one)).encode() + b"\r\n"
    head = f'--{line}\r\nContent-Disposition: form-data; name="file"; filename="audio"\r\n\r\n'
    body += head.encode() + await request.file.read() + f"\r\n--{line}--\r\n".encode()
    return f"multipart/form-data; boundary={line}", body
