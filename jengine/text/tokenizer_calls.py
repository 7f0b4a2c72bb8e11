"""What a process that tokenizes is asked: one struct for each call, as both sides know it."""

from __future__ import annotations

from typing import Literal

import msgspec

Side = Literal["left", "right"]


class Encode(msgspec.Struct, tag=True):
    """Token ids of a text; more than `max_tokens` are cut on `side`."""

    text: str
    add_special_tokens: bool
    max_tokens: int | None
    side: Side | None


class EncodePlain(msgspec.Struct, tag=True):
    """Token ids of a text in which special tokens are text like any other."""

    text: str


class EncodePair(msgspec.Struct, tag=True):
    """Token ids of two texts, and the type of each token."""

    first: str
    second: str
    max_tokens: int | None


class Beginning(msgspec.Struct, tag=True):
    """How many characters the beginning of a text with so many tokens has."""

    text: str
    tokens: int


class Decode(msgspec.Struct, tag=True):
    """The text of token ids."""

    ids: list[int]
    skip_special_tokens: bool


class RunTemplate(msgspec.Struct, tag=True):
    """What a chat template writes of messages: JSON of both and of its variables."""

    messages: str
    options: str


Call = Encode | EncodePlain | EncodePair | Beginning | Decode | RunTemplate
decoder = msgspec.msgpack.Decoder(Call)
encoder = msgspec.msgpack.Encoder()
