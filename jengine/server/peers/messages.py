"""What API processes ask each other, as msgpack. No pickle.

In: questions and answers. Out: bytes, and back. Must not know sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.api.async_requests import PauseMode
from jengine.metrics.families import Family


class Question(msgspec.Struct, frozen=True, tag=True):
    """Base of all questions."""


class AskFamilies(Question, frozen=True):
    """The metrics of this process alone."""


class GetResponse(Question, frozen=True):
    """A stored response of /v1/responses."""

    response_id: str


class RemoveResponse(Question, frozen=True):
    """Forget a stored response; whether it was there."""

    response_id: str


class AbortRequests(Question, frozen=True):
    """End requests by their ids, or all; how many there were."""

    request_ids: list[str] | None


class Pause(Question, frozen=True):
    """Run no more steps for this process's requests."""

    mode: PauseMode
    refusal: str | None = None  # of requests that come meanwhile


class Resume(Question, frozen=True):
    """Run steps again."""


class LoadAdapter(Question, frozen=True):
    """Offer a LoRA adapter under a name; what to say to the client."""

    name: str
    folder: str
    in_place: bool


class UnloadAdapter(Question, frozen=True):
    """Offer an adapter no longer."""

    name: str


class StoredFrame(msgspec.Struct, frozen=True):
    """A stored response on its way: the response as JSON, and the items of its conversation."""

    response: bytes
    items: list[dict[str, Any]]


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Why there is no answer."""

    text: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer, whose type follows from the question."""

    value: bytes


Questions = (
    AskFamilies | GetResponse | RemoveResponse | AbortRequests | Pause | Resume | LoadAdapter
    | UnloadAdapter
)  # fmt: skip
# Question -> type of its answer.
ANSWERS: dict[type[Question], Any] = {
    AskFamilies: list[Family],
    GetResponse: StoredFrame | None,
    RemoveResponse: bool,
    AbortRequests: int,
    Pause: None,
    Resume: None,
    LoadAdapter: str,
    UnloadAdapter: str,
}
encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Questions).decode
_decode_reply = msgspec.msgpack.Decoder(Answer | Refusal).decode


class PeerError(RuntimeError):
    """Another API process gave no answer."""


def answered(question: Question, reply: bytes) -> Any:
    """The value in a reply; a PeerError if it is a refusal."""
    match _decode_reply(reply):
        case Refusal(text):
            raise PeerError(text)
        case Answer(value):
            return msgspec.msgpack.decode(value, type=ANSWERS[type(question)])
