"""Encodes requests as HTTP bytes: head and JSON body.

In: a turn and what was said before it. Out: bytes for a connection.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.bench.serve.samples import LoadRequest
from jengine.bench.serve.settings import CHAT, LoadSettings
from jengine.client.address import Address
from jengine.errors import ConfigError

Messages = list[dict[str, Any]]


class RequestWriter:
    """Encodes the requests of one load."""

    def __init__(
        self, settings: LoadSettings, address: Address, model: str, headers: dict[str, str]
    ) -> None:
        self._settings, self._model = settings, model
        lines = [
            f"POST {address.path(settings.route)} HTTP/1.1",
            f"Host: {address.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        if any("\r" in line or "\n" in line for line in lines):
            raise ConfigError("--header: expected KEY=VALUE without line breaks.")
        self._head = "\r\n".join(lines).encode("latin-1")
        self._common = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **settings.sampling,
            **({"ignore_eos": True} if settings.ignore_eos else {}),
            **settings.extra_body,
        }

    def request(self, prompt: Any, output_len: int, request_id: str) -> bytes:
        """A request for `output_len` tokens after a prompt or messages."""
        chat = self._settings.backend == CHAT
        body = {
            **({"messages": prompt} if chat else {"prompt": prompt}),
            **{"max_completion_tokens" if chat else "max_tokens": output_len},
            **self._common,
        }
        encoded = msgspec.json.encode(body)
        head = f"\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(encoded)}\r\n\r\n"
        return self._head + head.encode("latin-1") + encoded


class Said:
    """Conversation history, in the form that the next request sends."""

    def __init__(self, backend: str) -> None:
        self._chat = backend == CHAT
        self._text = ""
        self._messages: Messages = []

    def with_turn(self, turn: LoadRequest) -> Any:
        """History up to and including this turn's prompt."""
        if self._chat:
            self._messages += messages_of(turn.prompt)
            return self._messages
        if not isinstance(turn.prompt, str):
            if turn.prompt and isinstance(turn.prompt[0], dict):
                raise ConfigError("messages in the dataset: expected --backend openai-chat.")
            return turn.prompt
        self._text += turn.prompt
        return self._text

    def answered(self, text: str) -> None:
        """History including the answer to the last turn."""
        if self._chat:
            self._messages = [*self._messages, {"role": "assistant", "content": text}]
        else:
            self._text += text


def messages_of(prompt: str | list[int] | Messages) -> Messages:
    """A prompt as chat messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    found = [message for message in prompt if isinstance(message, dict)]
    if len(found) != len(prompt):
        raise ConfigError("prompts of token ids: expected --backend openai, a chat takes text.")
    return found
