"""POST /invocations: SageMaker's single route.

In: a body of any endpoint that runs the model. Out: the response of that endpoint, chosen by the
body's fields and the model's task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.server.chat.endpoint import chat_completions
from jengine.server.completions.endpoint import completions
from jengine.server.errors import ApiError
from jengine.server.http.body import whole_body
from jengine.server.pooling.endpoints import classify, embeddings, pooling
from jengine.server.pooling.scoring import rerank, score
from jengine.server.serving.service import Service

_Fields = dict[str, msgspec.Raw]
Handlers = dict[str, Callable[[Service, Request], Awaitable[Response]]]

GENERATING: Handlers = {"messages": chat_completions, "prompt": completions}
SCORING: Handlers = {"query": rerank, "queries": score, "data_1": score, "text_1": score}
BY_TASK: Handlers = {"embed": embeddings, "classify": classify}


async def invocations(service: Service, http: Request) -> Response:
    """SageMaker's route: dispatches to the endpoint that the body's fields belong to."""
    handlers = handlers_of(service)
    try:
        given = msgspec.json.decode(await whole_body(http), type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        given = dict.fromkeys(handlers, msgspec.Raw())  # any endpoint refuses it with a reason
    for field, handler in handlers.items():
        if field in given:
            return await handler(service, http)
    raise ApiError(400, f"Expected one of the fields {', '.join(handlers)}.", param=[*handlers][-1])


def handlers_of(service: Service) -> Handlers:
    """Endpoints by the field that identifies their bodies."""
    found = service.check_serving().front.session.input_processor.pooling
    if found is None:
        return GENERATING
    own = BY_TASK.get(found.config.task, pooling)
    return {**SCORING, "messages": own, "input": own}
