"""`jengine chat URL`: a model behind an OpenAI-compatible server.

In: a URL and sampling settings. Out: pieces of answers. Starts no engine and imports no jax.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.args import ENGINE_HELP
from jengine.assembly.settings.flags import flag_of
from jengine.cli.answer import AnswerPiece
from jengine.cli.flags import SHARED
from jengine.cli.parser import Parser
from jengine.client.address import Address
from jengine.errors import ConfigError, JengineError

if TYPE_CHECKING:
    from jengine.client.server import Server

ROUTE = "/v1/chat/completions"
SERVER_FLAGS = ("model_name", "api_key")


def add_server_flags(parser: Parser) -> None:
    """Add flags that require a URL."""
    group = parser.add_argument_group("server", "With a URL in place of a model.")
    rest: dict[str, Any] = {"default": argparse.SUPPRESS}
    group.add_argument(
        "--model-name", metavar="NAME", help="which of the server's models [the first]", **rest
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="the server's key [$OPENAI_API_KEY]", **rest
    )


def refuse_server_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for such flags without a URL."""
    for name in SERVER_FLAGS:
        if name in vars(arguments):
            raise ConfigError(
                f"{flag_of(name)}: expected with a URL such as http://127.0.0.1:8000."
            )


def open_server(arguments: argparse.Namespace, given: dict[str, Any]) -> RemoteModel:
    """Choose the server's model, asking which it serves. Raises ConfigError."""
    known = vars(arguments)
    own = [name for name in known if name in ENGINE_HELP and name not in SHARED]
    if own:
        raise ConfigError(
            f"{flag_of(own[0])}: the server at {arguments.model} has its own engine settings."
        )
    # Imports asyncio and TLS, which other commands avoid.
    client = importlib.import_module("jengine.client.server")
    server = client.Server(Address.of(arguments.model), client.key_of(known.get("api_key")))
    listed = server.models()
    name = known.get("model_name", listed[0].get("id"))
    card = next((card for card in listed if card.get("id") == name), None)
    if card is None:
        served = ", ".join(str(card.get("id")) for card in listed)
        raise ConfigError(f"--model-name {name}: {arguments.model} serves {served}.")
    sampling = {key: value for key, value in given.items() if value is not None}
    return RemoteModel(server, str(name), card.get("max_model_len"), sampling)


class RemoteModel:
    """A served model. Settings not given are left to the server."""

    def __init__(
        self, server: Server, name: str, max_model_len: int | None, sampling: dict[str, Any]
    ) -> None:
        self._server, self._name, self._sampling = server, name, sampling
        self.max_model_len = max_model_len
        self.ready = f"Talking with {name} at {server.address}."

    def stream(self, messages: list[dict[str, str]]) -> Generator[AnswerPiece]:
        """Stream an answer; closing the generator closes the connection."""
        body = {
            "model": self._name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling,
        }
        with closing(self._server.stream(ROUTE, body)) as chunks:
            for chunk in chunks:
                if chunk.usage is not None:
                    made, read = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
                    yield AnswerPiece(total=made, prompt_tokens=read)
                for choice in chunk.choices:
                    yield AnswerPiece(
                        choice.added,
                        choice.thought,
                        tokens=0 if choice.opens else 1,  # estimate until the server reports usage
                        finish_reason=choice.finish_reason,
                    )

    def stats(self) -> str:
        """The server's current number of requests."""
        try:
            return f"{self._server.get('/load')['server_load']} requests at {self._server.address}"
        except (JengineError, KeyError, TypeError):
            return f"{self._server.address} does not say what it does (GET /load)"
