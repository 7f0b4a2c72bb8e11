"""The response object of the Responses API, and its counts."""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.server.responses.fields import ResponsesRequest


class InputDetails(msgspec.Struct):
    """Prompt tokens read from and added to the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True, frozen=True):
    """OpenAI's response object, in progress or complete."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    previous_response_id: str | None = None
    prompt: None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None = None


def settings_of(request: ResponsesRequest) -> dict[str, Any]:
    """Request fields that the response object repeats."""
    reasoning, text = request.reasoning, request.text
    return {
        "instructions": request.instructions,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "store": request.is_stored,
        "text": {"format": (text.format if text else None) or {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "top_logprobs": request.top_logprobs or 0,
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }
