"""Response bodies and chunks of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.server.formats.logprobs import ChatLogprobs, PromptLogprobs
from jengine.server.formats.request_metrics import PerRequestMetrics
from jengine.server.formats.usage import Usage

UNSET, UnsetType = msgspec.UNSET, msgspec.UnsetType


class Function(msgspec.Struct):
    """Name and arguments (JSON text) of a tool call."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: Function


class Message(msgspec.Struct, kw_only=True):
    """The answer to a conversation."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of n answers."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    # A .npy file as base64: [tokens - 1, layers, chosen], if the engine returns experts.
    routed_experts: str | None = None


class ChatResponse(msgspec.Struct, kw_only=True):
    """All answers to a conversation."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None  # encoders are never disaggregated here
    metrics: PerRequestMetrics | None = None


class DeltaChoice(msgspec.Struct, kw_only=True):
    """A streamed choice; `delta` holds changed fields only."""

    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[DeltaChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType | None = UNSET
    metrics: PerRequestMetrics | UnsetType = UNSET
