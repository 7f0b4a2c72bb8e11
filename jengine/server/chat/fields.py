"""Fields of chat completion requests, and checks made before any work is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from jengine.request_parameters import Amount, AmountOrAll
from jengine.server.errors import ApiError
from jengine.server.formats.field_ranges import ToolChoice, Tools
from jengine.server.formats.sampling_fields import CommonFields, check_common
from jengine.server.settings import ServerSettings

# Schema of a message in /openapi.json. Messages are validated when they are rendered.
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        },
    },
}
Messages = Annotated[
    list[Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=MESSAGE)]],
    msgspec.Meta(extra_json_schema={"minItems": 1}),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(CommonFields, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Messages | None = None
    max_completion_tokens: Amount | None = None
    logprobs: bool | None = None
    top_logprobs: AmountOrAll | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_prompt_text: bool | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    # Accepted without effect, as in other servers.
    service_tier: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None

    @property
    def opens_answer(self) -> bool:
        """Whether the template appends the generation prompt (`add_generation_prompt`)."""
        return self.add_generation_prompt is not False

    @property
    def offers_tools(self) -> bool:
        """Whether tools are given and tool_choice is not "none"."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def forces_calls(self) -> bool:
        """Whether tool_choice is "required" or names a function."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, dict)

    @property
    def forced_name(self) -> str | None:
        """Function name in tool_choice, if it names one."""
        choice = self.tool_choice
        return choice["function"]["name"] if isinstance(choice, dict) else None


def check_chat(request: ChatRequest, settings: ServerSettings) -> None:
    """Raise ApiError for combinations of fields that this server cannot answer."""
    check_common(request, settings)
    if not request.messages:
        raise ApiError(
            400, "messages is missing or empty; expected at least one message.", param="messages"
        )
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise ApiError(400, f"{name}={value}: expected at least 1.", param=name)
    if request.top_logprobs and not request.logprobs:  # 0 asks for nothing
        raise ApiError(
            400, "top_logprobs needs logprobs=true. Set it, or leave top_logprobs out.",
            param="top_logprobs",
        )  # fmt: skip
    if request.logprob_token_ids and not request.logprobs:
        raise ApiError(
            400, "when using `logprob_token_ids`, `logprobs` must be set to true.",
            param="logprob_token_ids",
        )  # fmt: skip
    if request.top_logprobs is not None and request.top_logprobs < -1:
        raise ApiError(
            400, f"top_logprobs={request.top_logprobs}: expected 0 or more, or -1 for all.",
            param="top_logprobs",
        )  # fmt: skip
    if request.opens_answer and request.continue_final_message:
        raise ApiError(
            400,
            "add_generation_prompt and continue_final_message are both true, the former by "
            "default; the prompt either opens a new message or continues the last one. Set one of "
            "them to false.",
            param="add_generation_prompt",
        )
    if request.chat_template is not None and not settings.trust_request_chat_template:
        raise ApiError(
            400,
            "chat_template: this server takes no templates from requests, as they are programs. "
            "Leave it out; --trust-request-chat-template would allow it.",
            param="chat_template",
        )
    _check_tools(request, settings)


def _check_tools(request: ChatRequest, settings: ServerSettings) -> None:
    choice = request.tool_choice
    if request.tools is not None and not request.tools:
        raise ApiError(400, "tools is an empty list; leave it out.", param="tools")
    if request.tools is None:
        if choice not in (None, "none"):
            raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
        return
    names = [_tool_name(index, tool) for index, tool in enumerate(request.tools)]
    if isinstance(choice, dict):
        _check_named(choice, names)
    elif choice not in (None, "none", "auto", "required"):
        raise ApiError(
            400,
            f"tool_choice is {choice!r:.80}; expected none, auto, required or a function's name "
            "as {'type': 'function', 'function': {'name': ...}}.",
            param="tool_choice",
        )
    # response_format constrains text, which a forced call has none of.
    if request.forces_calls and request.structured_outputs:
        raise ApiError(
            400,
            "tool_choice forces calls, and structured_outputs says what the answer must look like. "
            "Send one of them.",
            param="tool_choice",
        )
    if (
        request.offers_tools
        and not request.forces_calls
        and not (settings.enable_auto_tool_choice and settings.tool_call_parser)
    ):
        raise ApiError(
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
            "set. Start the server with them, or send tool_choice='none'.",
            param="tool_choice",
        )


def _tool_name(index: int, tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if tool.get("type", "function") != "function" or not isinstance(name, str) or not name:
        raise ApiError(
            400,
            f"tools[{index}]: expected {{'type': 'function', 'function': {{'name': ..., "
            "'parameters': ...}}.",
            param=f"tools[{index}]",
        )
    for field, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        value = function.get(field)  # type: ignore[union-attr] - it has a name
        if not isinstance(value, kind | None):
            where = f"tools[{index}].function.{field}"
            raise ApiError(
                400, f"{where}: expected {kind.__name__}, got {type(value).__name__}.", param=where
            )
    return name


def _check_named(choice: dict[str, Any], names: list[str]) -> None:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise ApiError(
            400,
            f"tool_choice names the function {name!r:.80}, which is not among the tools: "
            f"{', '.join(names)}.",
            param="tool_choice",
        )
