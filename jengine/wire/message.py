"""Messages between processes of one engine, as msgpack. No pickle.

In: messages. Out: bytes, and back; bytes that are no message raise BadFrame. Must not know sockets.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from jengine.wire.arrays import pack_array, unpack_array

A = TypeVar("A")
M = TypeVar("M")
# Bytes of one message. A prompt of a million tokens takes five million.
MOST_BYTES = 64 * 2**20
# Raised for malformed, mistyped or too deeply nested data.
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_encoder = msgspec.msgpack.Encoder(enc_hook=pack_array)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message: an array whose first item is the name of its class."""


class Question(Message, Generic[A], frozen=True):
    """A request message whose reply is an `A`."""

    __orig_bases__: ClassVar[tuple[Any, ...]]

    @classmethod
    def read_answer(cls, data: bytes) -> A:
        """Decode the reply to this question. Raises msgspec.DecodeError."""
        (kind,) = get_args(cls.__orig_bases__[0])
        return msgspec.msgpack.decode(data, type=kind)


class BadFrame(ValueError):
    """Bytes that are not a valid message."""


class Reader(Generic[M]):
    """Reads the messages that one kind of process sends."""

    def __init__(self, kinds: Any, sender: str, most_bytes: int = MOST_BYTES) -> None:
        """`kinds`: the union of message classes, `M`."""
        self._decoder = msgspec.msgpack.Decoder(kinds, ext_hook=unpack_array)
        self._sender = sender
        self.most_bytes = most_bytes

    def __call__(self, data: bytes | memoryview) -> M:
        """Decode a message. Raises BadFrame."""
        if len(data) > self.most_bytes:
            raise BadFrame(f"a message of {len(data)} bytes: expected at most {self.most_bytes}")
        try:
            return self._decoder.decode(data)
        except UNREADABLE as error:
            raise BadFrame(
                f"{self._sender} sent {len(data)} bytes that are no message: {error}"
            ) from error


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message, numpy arrays included."""
    return _encoder.encode(message)
