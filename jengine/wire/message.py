"""The bases of what processes of one engine say to each other, as msgpack."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec

A = TypeVar("A")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message: an array whose first item is the name of its class."""


class Question(Message, Generic[A], frozen=True):
    """A message that is answered by an `A`, which is plain data."""

    __orig_bases__: ClassVar[tuple[Any, ...]]

    @classmethod
    def read_answer(cls, data: bytes) -> A:
        """The answer in these bytes; a msgspec.DecodeError if it is none to this question."""
        (kind,) = get_args(cls.__orig_bases__[0])
        return msgspec.msgpack.decode(data, type=kind)
