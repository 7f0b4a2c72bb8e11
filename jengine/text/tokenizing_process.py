"""Program of a tokenizing process; see `confined_tokenizer`."""

from __future__ import annotations

import json
import sys
from array import array
from typing import assert_never

import msgspec

from jengine.confined.child import Answer, Part, serve
from jengine.text import tokenizer_calls as calls
from jengine.text.chat_template import run_template
from jengine.text.tokenizer import Tokenizer, load_tokenizer


class TokenizerJob(msgspec.Struct):
    """Tokenizer folder, and the memory limit per call."""

    folder: str
    most_bytes: int


def answer_of(tokenizer: Tokenizer, call: calls.Call) -> tuple[Part, ...]:
    match call:
        case calls.Encode(text, special, most, side):
            return (packed(tokenizer.encode(text, special, max_tokens=most, side=side)),)
        case calls.EncodePlain(text):
            return (packed(tokenizer.encode_plain(text)),)
        case calls.EncodePair(first, second, most):
            ids, types = tokenizer.encode_pair(first, second, most)
            return (packed([len(ids), *ids, *types]),)
        case calls.Beginning(text, tokens):
            return (str(len(tokenizer.beginning(text, tokens))).encode(),)
        case calls.Decode(ids, skip):
            return (tokenizer.decode(ids, skip).encode("utf-8", "surrogatepass"),)
        case calls.RunTemplate(messages, options):
            text = run_template(tokenizer, json.loads(messages), **json.loads(options))
            return (text.encode("utf-8", "surrogatepass"),)
        case _:
            assert_never(call)


def packed(ids: list[int]) -> Part:
    """Encode integers as bytes."""
    return array("i", ids).tobytes()


def prepare(job: bytearray) -> tuple[Answer, int]:
    """Build the answering function, and return its memory limit."""
    settings = msgspec.msgpack.decode(job, type=TokenizerJob)
    tokenizer = load_tokenizer(settings.folder)

    def answer(asked: bytearray) -> tuple[Part, ...]:
        return answer_of(tokenizer, calls.decoder.decode(asked))

    return answer, settings.most_bytes


if __name__ == "__main__":
    # Otherwise transformers imports an installed torch: seconds and memory for nothing.
    sys.modules["torch"] = None  # type: ignore[assignment]
    serve(prepare)
