"""POST /invocations: the one route by which SageMaker calls a model.

In: a body of either endpoint. Out: the response of the endpoint that it is for.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.server.chat.endpoint import chat_completions
from jengine.server.completions.endpoint import completions
from jengine.server.errors import ApiError
from jengine.server.http.body import whole_body
from jengine.server.serving.service import Service

_Fields = dict[str, msgspec.Raw]


async def invocations(service: Service, http: Request) -> Response:
    """SageMaker's route: a chat completion or a completion, by the body's fields."""
    service.check_serving()
    try:
        given = msgspec.json.decode(await whole_body(http), type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return await completions(service, http)  # which says what is wrong with the body
    if "messages" in given:
        return await chat_completions(service, http)
    if "prompt" in given:
        return await completions(service, http)
    raise ApiError(
        400,
        "Expected messages, as for /v1/chat/completions, or prompt, as for /v1/completions.",
        param="prompt",
    )
