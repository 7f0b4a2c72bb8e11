"""Renders a request's conversation by the chat template.

In: a checked request, the engine's template and the server's settings. Out: text with special
tokens in it. Runs in a thread pool. Must not know tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jengine.server.chat.fields import ChatRequest
from jengine.server.errors import ApiError
from jengine.server.serving.rendering import Rendering
from jengine.server.serving.service import Live
from jengine.server.serving.work_threads import ThreadLane
from jengine.server.settings import ServerSettings
from jengine.text.chat_images import ImagePart
from jengine.text.chat_template import is_reserved, render_chat, template_reads
from jengine.wire.json_limits import complaint_about


class RenderedChat(NamedTuple):
    """Rendered prompt text, unused template variables, and the images of the conversation."""

    text: str
    unread: tuple[str, ...]
    images: list[ImagePart]


def lane_of_chat(rendering: Rendering, request: ChatRequest) -> ThreadLane:
    """Choose the thread pool for rendering; a client's own template goes to a confined process."""
    given = [request.messages, request.tools, request.chat_template_kwargs]
    return rendering.lane(given, doubtful=request.chat_template is not None)


def rendered_chat(live: Live, settings: ServerSettings, request: ChatRequest) -> RenderedChat:
    """Apply the chat template to the request's messages and tools."""
    live.rendering.text_limits.check_messages(request.messages, "messages")
    tokenizer = live.rendering.tokenizer
    tools = request.tools
    if settings.exclude_tools_when_tool_choice_none and request.tool_choice == "none":
        tools = None
    usual = live.engine.args.chat_template
    template = request.chat_template or (None if usual is None else str(usual))
    reads = template_reads(tokenizer, template, tools)
    if not reads.tools and not request.offers_tools:
        tools = None  # the template ignores them, and no call is allowed
    variables = template_variables(request, settings.default_chat_template_kwargs, reads.variables)
    options: dict[str, Any] = {
        "chat_template": template,
        "add_generation_prompt": request.opens_answer,
        "continue_final_message": bool(request.continue_final_message),
        "tools": tools,
        "chat_template_kwargs": variables.used,
        "content_format": settings.chat_template_content_format,
    }
    marked, images = live.rendering.without_images(request.messages or [])
    stands_for_image = live.rendering.image_text
    messages = template_messages(
        marked, knows_developer=reads.developer, takes_images=stands_for_image is not None
    )
    return RenderedChat(
        render_chat(tokenizer, messages, image=stands_for_image, **options),
        tuple(f"chat_template_kwargs.{name}" for name in variables.unread),
        images,
    )


IMAGES = ("image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file")


class Variables(NamedTuple):
    """Variables for the chat template, and the names of the request's variables that it does not
    read."""

    used: dict[str, Any]
    unread: tuple[str, ...]


def template_messages(
    given: Sequence[Mapping[str, Any]], *, knows_developer: bool, takes_images: bool = False
) -> list[dict[str, Any]]:
    """Normalise messages for the chat template; images must have been extracted before."""
    messages = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ApiError(
                400, f"{where}.role is missing; expected system, developer, user, assistant or "
                "tool.", param=f"{where}.role",
            )  # fmt: skip
        ready = {name: value for name, value in message.items() if value is not None}
        ready.setdefault("content", None if message.get("tool_calls") else "")
        if role == "developer" and not knows_developer:
            ready["role"] = "system"
        if not takes_images:
            _refuse_media(ready["content"], f"{where}.content")
        if role == "assistant":
            _ready_assistant(ready, where)
        messages.append(ready)
    return messages


def _refuse_media(content: Any, where: str) -> None:
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in IMAGES:
            raise ApiError(
                400,
                f"{where}[{number}] has type {kind}, and this model reads text only. Leave it out.",
                param=f"{where}[{number}]",
            )


def _ready_assistant(message: dict[str, Any], where: str) -> None:
    """Check tool calls, and set both names of the reasoning."""
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
        return
    if not isinstance(calls, list):
        raise ApiError(400, f"{where}.tool_calls: expected a list.", param=f"{where}.tool_calls")
    for number, call in enumerate(calls):
        _check_call(call, f"{where}.tool_calls[{number}]")


def _check_call(call: Any, where: str) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"{where}: expected a function with a name.", param=where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        path = f"{where}.function.arguments"
        complaint = complaint_about(arguments.encode("utf-8", "replace"))
        if complaint is not None:
            raise ApiError(400, f"{path} has {complaint}. Send less at once.", param=path)


def template_variables(
    request: ChatRequest, defaults: Mapping[str, Any] | None, known: frozenset[str]
) -> Variables:
    """Merge the server's default template variables with the request's, filtered by `known`.

    Reserved names are kept: the renderer refuses them with an error.
    """
    given = request.chat_template_kwargs or {}
    implied: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        implied["reasoning_effort"] = request.reasoning_effort
        implied["enable_thinking"] = request.reasoning_effort != "none"
    wanted = {**(defaults or {}), **implied, **given}
    used = {name: value for name, value in wanted.items() if name in known or is_reserved(name)}
    return Variables(used, tuple(sorted(given.keys() - used.keys())))
