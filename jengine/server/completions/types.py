"""Response bodies and chunks of /v1/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.server.formats.logprobs import CompletionLogprobs, PromptLogprobs
from jengine.server.formats.request_metrics import PerRequestMetrics
from jengine.server.formats.usage import Usage


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    # A .npy file as base64: [tokens - 1, layers, chosen], if the engine returns experts.
    routed_experts: str | None = None


class CompletionResponse(msgspec.Struct, kw_only=True):
    """All completions of a request."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: Usage
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None  # encoders are never disaggregated here
    metrics: PerRequestMetrics | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """Delta of one completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    metrics: PerRequestMetrics | msgspec.UnsetType = msgspec.UNSET
