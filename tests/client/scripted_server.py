"""A server of OpenAI's API with scripted answers, on loopback, in a thread of this process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

MODEL = "scripted"
# A prompt that ends with one of these is answered by a failure of that kind.
REFUSED, BUSY, BROKEN, CUT, NO_END = "!refused", "!busy", "!broken", "!cut", "!no-end"
STATUS = {
    REFUSED: (400, "this prompt is refused"),
    BUSY: (503, "the queue is full"),
    BROKEN: (500, "out of luck"),
}


@dataclass
class ScriptedServer:
    """An ASGI application. Every request is answered with `words`, as often as it takes."""

    words: list[str] = field(default_factory=lambda: [" one", " two", " three"])
    thoughts: list[str] = field(default_factory=list)
    key: str | None = None
    seconds_per_token: float = 0.0
    root: str | None = None
    max_model_len: int | None = 100
    counts_usage: bool = True
    logprobs: list[dict[str, Any]] = field(default_factory=list)  # an entry for each word
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    disconnects: int = 0
    url: str = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            await answer(send, {"error": {"message": "wrong key"}}, 401)
            return
        if scope["method"] == "GET":
            await self._get(scope["path"], send)
            return
        body = json.loads(await read(receive))
        self.asked.append(body)
        self.headers.append(headers)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self._stream(body, receive, send)
        finally:
            self.running -= 1

    async def _get(self, path: str, send: Any) -> None:
        card = {"id": MODEL, "owned_by": "tests", "root": self.root}
        if self.max_model_len is not None:
            card["max_model_len"] = self.max_model_len
        pages = {
            "/v1/models": {"object": "list", "data": [card]},
            "/version": {"version": "1.2"},
            "/load": {"server_load": self.running},
        }
        if path in pages:
            await answer(send, pages[path])
        else:
            await answer(send, {"detail": "Not Found"}, 404)

    async def _stream(self, body: dict[str, Any], receive: Any, send: Any) -> None:
        prompt = body.get("prompt") or body["messages"][-1]["content"]
        kind = next((k for k in (*STATUS, CUT, NO_END) if str(prompt).endswith(k)), None)
        if kind in STATUS:
            status, message = STATUS[kind]
            error = {"message": message, "type": "X", "param": None, "code": status}
            await answer(send, {"error": error}, status)
            return
        await start(send, 200, b"text/event-stream; charset=utf-8")
        asked_for = body.get("max_tokens") or body.get("max_completion_tokens")
        count = asked_for or len(self.words)
        if not body.get("stream"):
            raise AssertionError("the clients here only stream")
        chat = "messages" in body
        if chat:
            await event(
                send, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
            )
        for thought in self.thoughts:
            await event(send, {"choices": [{"index": 0, "delta": {"reasoning": thought}}]})
        for number in range(count):
            if kind is CUT and number:
                await event(send, {"error": {"message": "the engine died", "code": 500}})
                return
            word = self.words[number % len(self.words)]
            added: dict[str, Any] = {"delta": {"content": word}} if chat else {"text": word}
            if self.logprobs:
                added["logprobs"] = {"content": [self.logprobs[number]]}
            reason = "length" if number + 1 == count else None
            await event(send, {"choices": [{"index": 0, **added, "finish_reason": reason}]})
            if self.seconds_per_token and await left(receive, self.seconds_per_token):
                self.disconnects += 1
                return
        if self.counts_usage:
            usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
            await event(send, {"choices": [], "usage": usage})
        end = b"" if kind is NO_END else b": a comment\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": end})


async def read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def left(receive: Any, seconds: float) -> bool:
    """Wait; whether the client has left meanwhile."""
    try:
        return (await asyncio.wait_for(receive(), seconds))["type"] == "http.disconnect"
    except TimeoutError:
        return False


async def start(send: Any, status: int, kind: bytes, length: int | None = None) -> None:
    headers = [(b"content-type", kind)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(send: Any, content: Any, status: int = 200) -> None:
    body = json.dumps(content).encode()
    await start(send, status, b"application/json", len(body))
    await send({"type": "http.response.body", "body": body})


async def event(send: Any, content: Any) -> None:
    body = b"data: " + json.dumps(content).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


class QuickServer(uvicorn.Server):
    """It notices within milliseconds that it should end, not within a tenth of a second."""

    async def main_loop(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(0.005)


@contextmanager
def serving(app: Any, loop: Any = "auto") -> Iterator[str]:
    """The URL of an ASGI application while it is served."""
    config = uvicorn.Config(
        app, "127.0.0.1", 0, log_level="critical", lifespan="off", http="h11", loop=loop
    )
    server = QuickServer(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


@contextmanager
def scripted(**settings: Any) -> Iterator[ScriptedServer]:
    """A scripted server that listens."""
    server = ScriptedServer(**settings)
    with serving(server) as url:
        server.url = url
        yield server
