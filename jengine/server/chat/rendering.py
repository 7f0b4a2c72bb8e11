"""A request's conversation as the text that its template makes of it.

In: a checked request, the engine's template and the server's settings. Out: text with special
tokens in it. Runs in a lane. Must not know tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jengine.server.chat.fields import ChatRequest
from jengine.server.chat.messages import template_messages, template_variables
from jengine.server.serving.lanes import Lane
from jengine.server.serving.rendering import Rendering
from jengine.server.serving.service import Live
from jengine.server.settings import ServerSettings
from jengine.text.chat_images import ImagePart
from jengine.text.chat_template import render_chat, template_reads


class RenderedChat(NamedTuple):
    """Rendered prompt text, unused template variables, and the images of the conversation."""

    text: str
    unread: tuple[str, ...]
    images: list[ImagePart]


def lane_of_chat(rendering: Rendering, request: ChatRequest) -> Lane:
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
        tools = None  # the model may not call them anyway, so nobody need be told
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
