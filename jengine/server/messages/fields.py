"""Fields of /v1/messages requests, and their conversion to chat requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jengine.request_parameters import Amount, Given, Texts, struct_of
from jengine.sampling_params import PARAMETERS
from jengine.server.chat.fields import ChatRequest, Effort
from jengine.server.errors import ApiError
from jengine.server.formats.field_ranges import Salt
from jengine.server.formats.sampling_fields import CommonFields
from jengine.server.messages.input import chat_messages

# Chat field -> field of this API, for errors.
CHAT_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "max_completion_tokens": "max_tokens",
    "thinking_token_budget": "thinking.budget_tokens",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Thinking(msgspec.Struct):
    """Anthropic's `thinking`: whether to reason, and its token budget."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(msgspec.Struct):
    """Anthropic's `output_config`: output format and effort."""

    effort: Effort | None = None
    format: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """Anthropic's `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


if TYPE_CHECKING:  # type checkers cannot see the fields of a struct made at run time
    SampledRequest = CountRequest
else:
    SampledRequest = struct_of(PARAMETERS, Given.MESSAGES, CountRequest)


class MessagesRequest(SampledRequest, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Amount | None = None
    stop_sequences: Texts | None = None
    stream: bool | None = None
    cache_salt: Salt | None = None
    vllm_xargs: dict[str, Any] | None = None
    # Accepted without effect, as in other servers.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


_SHARED = MessagesRequest.__struct_fields__
_COMMON = [name for name in CommonFields.__struct_fields__ if name in _SHARED]


def as_chat(request: CountRequest) -> ChatRequest:
    """Convert to the equivalent chat completion request."""
    if isinstance(request, MessagesRequest):
        if request.max_tokens is None:
            raise ApiError(400, "max_tokens is missing; expected at least 1.", param="max_tokens")
        fields: dict[str, Any] = {name: getattr(request, name) for name in _COMMON}
        fields["stop"] = request.stop_sequences or None
        _check_budget(request.thinking, request.max_tokens)
    else:
        fields = {"model": request.model}
    if not request.messages:
        raise ApiError(
            400, "messages is missing or empty; expected at least one.", param="messages"
        )
    messages = chat_messages(request.system, request.messages)
    last = messages[-1] if messages else {}
    continues = last.get("role") == "assistant" and "tool_calls" not in last
    config, choice = request.output_config, request.tool_choice
    effort = config.effort if config else None
    thinking, budget = request.thinking, None
    if thinking is not None and thinking.type == "disabled":
        effort = "none"
    elif thinking is not None and thinking.type == "enabled":
        budget = thinking.budget_tokens
    return ChatRequest(
        **fields,
        messages=messages,
        tools=[_chat_tool(index, tool) for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_chat_choice(choice) if request.tools else None,
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning_effort=effort,
        thinking_token_budget=budget,
        response_format=_response_format(config),
        chat_template_kwargs=request.chat_template_kwargs,
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def _check_budget(thinking: Thinking | None, max_tokens: int) -> None:
    budget = thinking and thinking.budget_tokens
    if budget is not None and thinking.type == "enabled" and budget >= max_tokens:  # type: ignore[union-attr]
        raise ApiError(
            400, f"thinking.budget_tokens={budget} must be less than max_tokens={max_tokens}.",
            param="thinking.budget_tokens",
        )  # fmt: skip


def _chat_tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not isinstance(schema, dict):
        raise ApiError(
            400,
            f"tools[{index}]: expected {{'name': ..., 'input_schema': {{...}}}}; other tools are "
            "not built in.",
            param=f"tools[{index}]",
        )
    function = {"name": name, "parameters": {"type": "object", **schema}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _chat_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _response_format(config: OutputConfig | None) -> dict[str, Any] | None:
    given = config.format if config else None
    if given is None:
        return None
    schema = {"name": "output", "schema": given.get("schema")}
    return {"type": given.get("type"), "json_schema": schema}
