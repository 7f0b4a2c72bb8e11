"""Messages between API processes, as msgpack. No pickle.

In: questions and answers. Out: bytes, and back. Must not know sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.api.async_requests import PauseMode
from jengine.metrics.merged_metrics import MetricFamily
from jengine.wire.message import Question


class StoredFrame(msgspec.Struct, frozen=True):
    """A stored response: its JSON, and the items of its conversation."""

    response: bytes
    items: list[dict[str, Any]]


class AskFamilies(Question[list[MetricFamily]], frozen=True):
    """Ask for the process's own metrics."""


class GetResponse(Question[StoredFrame | None], frozen=True):
    """Ask for a stored response of /v1/responses."""

    response_id: str


class RemoveResponse(Question[bool], frozen=True):
    """Delete a stored response. Answer: whether it existed."""

    response_id: str


class AbortRequests(Question[int], frozen=True):
    """Abort requests by id, or all. Answer: how many were aborted."""

    request_ids: list[str] | None


class PausePeer(Question[None], frozen=True):
    """Stop stepping for this process's requests."""

    mode: PauseMode
    refusal: str | None = None  # error for requests that arrive meanwhile


class ResumePeer(Question[None], frozen=True):
    """Resume stepping."""


class LoadAdapter(Question[str], frozen=True):
    """Register a LoRA adapter under a name. Answer: the message for the client."""

    name: str
    folder: str
    in_place: bool


class UnloadAdapter(Question[str], frozen=True):
    """Remove a LoRA adapter."""

    name: str


Questions = (
    AskFamilies | GetResponse | RemoveResponse | AbortRequests | PausePeer | ResumePeer
    | LoadAdapter | UnloadAdapter
)  # fmt: skip
encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Questions).decode


class PeerError(RuntimeError):
    """Another API process did not answer, or refused, and why."""
