"""Encodes messages between fronts and a core as msgpack, never pickle.

In: messages. Out: bytes, and back; undecodable bytes raise BadFrame. Must not know sockets.
"""

from __future__ import annotations

import msgspec

from jengine.engine.process.to_core import FromFront
from jengine.engine.process.to_front import FromCore, Outputs
from jengine.wire.arrays import pack_array, unpack_array
from jengine.wire.deltas import read_scores
from jengine.wire.message import Message

# Bytes of one message. A prompt of a million tokens takes five million.
MOST_BYTES = 64 * 2**20

_encoder = msgspec.msgpack.Encoder(enc_hook=pack_array)
_from_front = msgspec.msgpack.Decoder(FromFront)
_from_core = msgspec.msgpack.Decoder(FromCore, ext_hook=unpack_array)
# What does not describe a value of the right type, or nests too deeply.
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class BadFrame(ValueError):
    """Bytes that are not a valid message."""


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_from_front(data: bytes) -> FromFront:
    """Decode a front's message. Raises BadFrame."""
    _check_size(data)
    try:
        return _from_front.decode(data)
    except UNREADABLE as error:
        raise BadFrame(f"a front sent {len(data)} bytes that are no message: {error}") from error


def decode_from_core(data: bytes) -> FromCore:
    """Decode a core's message, log-probabilities included. Raises BadFrame."""
    _check_size(data)
    try:
        message = _from_core.decode(data)
        for delta in message.deltas if isinstance(message, Outputs) else ():
            read_scores(delta)
    except UNREADABLE as error:
        raise BadFrame(f"the core sent {len(data)} bytes that are no message: {error}") from error
    return message


def _check_size(data: bytes) -> None:
    if len(data) > MOST_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes: expected at most {MOST_BYTES}")
