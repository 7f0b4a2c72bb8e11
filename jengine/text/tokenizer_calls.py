"""Requests to a tokenizing process, one struct per call."""

from __future__ import annotations

from typing import Literal

import msgspec

Side = Literal["left", "right"]


class Encode(msgspec.Struct, tag=True):
    """See `Tokenizer.encode`."""

    text: str
    add_special_tokens: bool
    max_tokens: int | None
    side: Side | None


class EncodePlain(msgspec.Struct, tag=True):
    """See `Tokenizer.encode_plain`."""

    text: str


class EncodePair(msgspec.Struct, tag=True):
    """See `Tokenizer.encode_pair`."""

    first: str
    second: str
    max_tokens: int | None


class Beginning(msgspec.Struct, tag=True):
    """Number of characters of the longest prefix with `tokens` tokens."""

    text: str
    tokens: int


class Decode(msgspec.Struct, tag=True):
    ids: list[int]
    skip_special_tokens: bool


class RunTemplate(msgspec.Struct, tag=True):
    """Render a chat template; messages and options as JSON."""

    messages: str
    options: str


Call = Encode | EncodePlain | EncodePair | Beginning | Decode | RunTemplate
decoder = msgspec.msgpack.Decoder(Call)
encoder = msgspec.msgpack.Encoder()
