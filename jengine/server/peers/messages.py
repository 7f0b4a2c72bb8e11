"""What API processes ask each other, as msgpack. No pickle.

In: questions and answers. Out: bytes, and back. Must not know sockets.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from jengine.api.async_requests import PauseMode
from jengine.metrics.families import Family
from jengine.wire.message import Message, Question

A = TypeVar("A")


class StoredFrame(msgspec.Struct, frozen=True):
    """A stored response on its way: the response as JSON, and the items of its conversation."""

    response: bytes
    items: list[dict[str, Any]]


class AskFamilies(Question[list[Family]], frozen=True):
    """The metrics of this process alone."""


class GetResponse(Question[StoredFrame | None], frozen=True):
    """A stored response of /v1/responses."""

    response_id: str


class RemoveResponse(Question[bool], frozen=True):
    """Forget a stored response; whether it was there."""

    response_id: str


class AbortRequests(Question[int], frozen=True):
    """End requests by their ids, or all; how many there were."""

    request_ids: list[str] | None


class Pause(Question[None], frozen=True):
    """Run no more steps for this process's requests."""

    mode: PauseMode
    refusal: str | None = None  # of requests that come meanwhile


class Resume(Question[None], frozen=True):
    """Run steps again."""


class LoadAdapter(Question[str], frozen=True):
    """Offer a LoRA adapter under a name; what to say to the client."""

    name: str
    folder: str
    in_place: bool


class UnloadAdapter(Question[str], frozen=True):
    """Offer an adapter no longer."""

    name: str


class Refusal(Message, frozen=True):
    """Why there is no answer."""

    text: str


class Answer(Message, frozen=True):
    """The answer, whose type follows from the question."""

    value: bytes


Questions = (
    AskFamilies | GetResponse | RemoveResponse | AbortRequests | Pause | Resume | LoadAdapter
    | UnloadAdapter
)  # fmt: skip
encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Questions).decode
_decode_reply = msgspec.msgpack.Decoder(Answer | Refusal).decode


class PeerError(RuntimeError):
    """Another API process gave no answer."""


def answered(question: Question[A], reply: bytes) -> A:
    """The value in a reply; a PeerError if it is a refusal."""
    match _decode_reply(reply):
        case Refusal(text):
            raise PeerError(text)
        case Answer(value):
            return question.read_answer(value)
