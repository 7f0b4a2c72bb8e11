"""Messages from fronts to a core. Must not know sockets."""

from __future__ import annotations

from jengine.engine.questions import AnyQuestion
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.request import WireRequest
from jengine.wire.message import Message, Reader


class Hello(Message, frozen=True):
    """A front's first message."""

    takes_logs: bool = False  # the core's log records go to this front
    takes_contents: bool = False  # so do the contents of its cache, by which requests are routed


class TellTokenizer(Message, frozen=True):
    """The front's tokenizer, which grammars are compiled against."""

    tokenizer: TokenizerData


class AddRequest(Message, frozen=True):
    wire: WireRequest


class AbortRequest(Message, frozen=True):
    request_id: str


class Ask(Message, frozen=True):
    """A question; its Answer or Refusal has the same number."""

    number: int
    question: AnyQuestion


class Leave(Message, frozen=True):
    """The front disconnects; abort its requests."""


class Shutdown(Message, frozen=True):
    """The front that owns the core stops it."""


FromFront = Hello | TellTokenizer | AddRequest | AbortRequest | Ask | Leave | Shutdown
decode_from_front = Reader[FromFront](FromFront, "a front")
