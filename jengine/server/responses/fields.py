"""Fields of /v1/responses requests, what is refused, and their conversion to chat requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from jengine.request_parameters import Amount, AmountOrAll
from jengine.server.chat.fields import ChatRequest, Effort
from jengine.server.errors import ApiError
from jengine.server.formats.sampling_fields import CommonFields
from jengine.server.settings import ServerSettings

LOGPROBS = "message.output_text.logprobs"
# Accepted in `include` without effect: results of tools that are not built in.
_WITHOUT_EFFECT = {
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
}
# Chat field -> field of this API, for errors.
CHAT_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "response_format.type": "text.format.type",
    "response_format.json_schema": "text.format.schema",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}


class ReasoningOptions(msgspec.Struct):
    """OpenAI's `reasoning`: effort and summary."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(msgspec.Struct):
    """OpenAI's `text`: output format and verbosity."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(CommonFields, kw_only=True):
    """The body of POST /v1/responses."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Amount | None = None
    max_tool_calls: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    include: list[str] | None = None
    top_logprobs: AmountOrAll | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Any = None
    prompt: Any = None
    # Accepted without effect, as in other servers.
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def shows_logprobs(self) -> bool:
        """Whether `include` requests output log-probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def is_stored(self) -> bool:
        """Whether the response is kept for GET and previous_response_id."""
        return self.store is not False


def check_responses(request: ResponsesRequest, settings: ServerSettings) -> None:
    """Raise ApiError for unsupported fields; the rest is checked as a chat."""
    for name, advice in (
        ("background", "Leave it out and wait for the response, or stream it."),
        ("conversation", "Send previous_response_id, or the items as input."),
        ("prompt", "Send its text as instructions and input."),
        ("use_beam_search", "Send /v1/chat/completions."),
    ):
        if getattr(request, name):
            raise ApiError(400, f"{name} is not supported. {advice}", param=name)
    if request.input is None:
        raise ApiError(400, "input is missing; expected a text or a list of items.", param="input")
    if (request.n or 1) > 1:
        raise ApiError(400, "n: a response is one answer. Send several requests.", param="n")
    has_parsers = settings.reasoning_parser is not None or bool(request.tools)
    _check_include(request, has_parsers)
    if request.max_output_tokens is not None and request.max_output_tokens < 1:
        raise ApiError(
            400, f"max_output_tokens={request.max_output_tokens}: expected at least 1.",
            param="max_output_tokens",
        )  # fmt: skip


def _check_include(request: ResponsesRequest, has_parsers: bool) -> None:
    for name in request.include or ():
        if name != LOGPROBS and name not in _WITHOUT_EFFECT:
            known = ", ".join(sorted({LOGPROBS, *_WITHOUT_EFFECT}))
            raise ApiError(
                400, f"include has {name!r:.80}; expected some of: {known}.", param="include"
            )
    if request.top_logprobs and not request.shows_logprobs:
        raise ApiError(400, f"top_logprobs needs include=[{LOGPROBS!r}].", param="top_logprobs")
    if request.shows_logprobs and has_parsers:
        raise ApiError(
            400,
            f"include={LOGPROBS!r}: tokens cannot be told apart where reasoning or tool calls are "
            "read from the answer. Leave it out, or use /v1/chat/completions.",
            param="include",
        )


def as_chat(
    request: ResponsesRequest, messages: Sequence[dict[str, Any]], max_model_len: int
) -> ChatRequest:
    """Convert to the equivalent chat completion request."""
    fields = {name: getattr(request, name) for name in CommonFields.__struct_fields__}
    if request.truncation == "auto":
        kept = max_model_len - (request.max_output_tokens or max_model_len // 4)
        fields |= {"truncate_prompt_tokens": max(1, kept), "truncation_side": "left"}
    fields["response_format"] = _response_format(request) or request.response_format
    return ChatRequest(
        **fields,
        messages=list(messages),
        max_completion_tokens=request.max_output_tokens,
        tools=[_chat_tool(index, tool) for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_chat_choice(request),
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        include_reasoning=request.include_reasoning,
        chat_template_kwargs=request.chat_template_kwargs,
        logprobs=True if request.shows_logprobs else None,
        top_logprobs=request.top_logprobs if request.shows_logprobs else None,
    )


def _response_format(request: ResponsesRequest) -> dict[str, Any] | None:
    given = request.text.format if request.text else None
    if given is None or given.get("type") != "json_schema":
        return given
    schema = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema if "schema" in schema else None}


def _chat_tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise ApiError(
            400,
            f"tools[{index}]: expected {{'type': 'function', 'name': ..., 'parameters': ...}}; "
            "other tools are not built in.",
            param=f"tools[{index}]",
        )
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _chat_choice(request: ResponsesRequest) -> str | dict[str, Any] | None:
    choice = request.tool_choice
    if not request.tools and choice == "auto":
        return None
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice
