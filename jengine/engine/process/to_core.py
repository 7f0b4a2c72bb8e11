"""Messages from fronts to a core. Must not know sockets."""

from __future__ import annotations

from jengine.engine.questions import AnyQuestion
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.request import WireRequest
from jengine.wire.message import Message, Reader


class Hello(Message, frozen=True):
    """A front's first message."""

    takes_logs: bool = False  # send it the core's log records
    takes_contents: bool = False  # send it the cache's block hashes, to route requests by


class TellTokenizer(Message, frozen=True):
    """The front's tokenizer, which grammars are compiled against."""

    tokenizer: TokenizerData


class AddRequest(Message, frozen=True):
    wire: WireRequest


class AbortRequest(Message, frozen=True):
    request_id: str


class Ask(Message, frozen=True):
    """A question; its CoreAnswer or CoreRefusal has the same number."""

    number: int
    question: AnyQuestion


class Leave(Message, frozen=True):
    """The front disconnects; abort its requests."""


class Shutdown(Message, frozen=True):
    """The front that owns the core stops it."""


FromFront = Hello | TellTokenizer | AddRequest | AbortRequest | Ask | Leave | Shutdown
decode_from_front = Reader[FromFront](FromFront, "a front")
