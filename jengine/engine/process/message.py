"""What all messages between fronts and an engine core have in common. Must not know sockets."""

from __future__ import annotations

import msgspec


class BadFrame(ValueError):
    """Bytes that are no message."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""
