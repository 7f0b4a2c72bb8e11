"""POST /tokenize and /detokenize, GET /tokenizer_info: the tokenizer over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.server.chat.fields import ChatRequest, check_chat
from jengine.server.chat.rendering import lane_of_chat, rendered_chat
from jengine.server.errors import ApiError
from jengine.server.http.body import ignore, read_body
from jengine.server.http.disconnect import unless_client_leaves
from jengine.server.http.json_response import json_response
from jengine.server.serving.service import Service


class TokenizeRequest(ChatRequest, kw_only=True):
    """Body of POST /tokenize: a prompt, or messages with chat template fields."""

    prompt: str | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[int] | None = None


class DetokenizeResponse(msgspec.Struct):
    prompt: str


async def tokenize(service: Service, http: Request) -> Response:
    """Tokenize a prompt or a rendered conversation, even beyond the context length."""
    request = await read_body(http, TokenizeRequest, strict=service.settings.strict_requests)
    live, settings = service.live, service.settings
    live.adapters.checked(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "Expected either prompt or messages.", param="prompt")
    if request.messages is not None:
        check_chat(request, settings)
    tokenizer = live.rendering.tokenizer

    rendering = live.rendering

    def work() -> TokenizeResponse:
        text, special = request.prompt, request.add_special_tokens is not False
        if text is None:
            text, unread, images = rendered_chat(live, settings, request)
            if images:
                raise ApiError(
                    400, "messages with images: their tokens depend on the images. Leave them out.",
                    param="messages",
                )  # fmt: skip
            special = bool(request.add_special_tokens)  # the template adds special tokens
            ignore(http, unread)
        rendering.text_limits.check_text(text, "prompt" if request.prompt else "messages")
        ids, shown = tokenizer.encode(text, special), None
        if request.return_token_strs:
            shown = [str(one) for one in tokenizer.hf.convert_ids_to_tokens(ids)]
        return TokenizeResponse(len(ids), live.engine.schedule.max_model_len, ids, shown)

    lane = lane_of_chat(rendering, request) if request.messages else rendering.lane(request.prompt)
    return json_response(await unless_client_leaves(http.receive, lane.run(work)))


async def detokenize(service: Service, http: Request) -> Response:
    """Detokenize token ids."""
    request = await read_body(http, DetokenizeRequest, strict=service.settings.strict_requests)
    live = service.live
    live.adapters.checked(request.model)
    if request.tokens is None:
        raise ApiError(400, "tokens is missing; expected a list of token ids.", param="tokens")
    tokens = live.rendering.limits.in_vocabulary("tokens", request.tokens)
    live.rendering.text_limits.check_tokens(tokens, "tokens")
    text = await unless_client_leaves(http.receive, live.rendering.text_of(tokens))
    return json_response(DetokenizeResponse(text))


async def tokenizer_info(service: Service, http: Request) -> Response:
    """The tokenizer's configuration; off by default."""
    if not service.settings.enable_tokenizer_info_endpoint:
        raise ApiError(
            404, "This route is off. Start the server with --enable-tokenizer-info-endpoint."
        )
    hf = service.live.rendering.tokenizer.hf
    info = {name: plain(value) for name, value in hf.init_kwargs.items()}
    info |= {name: plain(value) for name, value in hf.special_tokens_map.items()}
    info["tokenizer_class"] = type(hf).__name__
    info["chat_template"] = service.live.engine.args.chat_template or hf.chat_template
    return json_response({name: value for name, value in info.items() if value is not None})


def plain(value: Any) -> Any:
    """Make a tokenizer setting JSON-serialisable; None if it is not."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return None if value.startswith("/") else value  # hide paths of this host
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    content = getattr(value, "content", None)  # an added token
    return content if isinstance(content, str) else None
