"""The messages that fronts send to an engine core. Must not know sockets."""

from __future__ import annotations

from jengine.engine.questions import AnyQuestion
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.request import WireRequest
from jengine.wire.message import Message


class Hello(Message, frozen=True):
    """The first message of a front."""

    takes_logs: bool = False  # the core's log records go to this front
    takes_contents: bool = False  # so do the contents of its cache, by which requests are routed


class TellTokenizer(Message, frozen=True):
    """The front's tokenizer, which grammars are over."""

    tokenizer: TokenizerData


class AddRequest(Message, frozen=True):
    """Queue a request."""

    wire: WireRequest


class AbortRequest(Message, frozen=True):
    """End a request."""

    request_id: str


class Ask(Message, frozen=True):
    """A question, which gets an Answer or a Refusal with the same number."""

    number: int
    question: AnyQuestion


class Leave(Message, frozen=True):
    """The front leaves: end its requests."""


class Shutdown(Message, frozen=True):
    """The front that started the core ends it."""


FromFront = Hello | TellTokenizer | AddRequest | AbortRequest | Ask | Leave | Shutdown
