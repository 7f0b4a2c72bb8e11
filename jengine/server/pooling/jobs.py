"""One pooling request, from its prompts to its response body.

Every endpoint is a job that formats the pooled results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
from starlette.requests import Request

from jengine.api.pooling.front import Pooling
from jengine.config import PoolingTask
from jengine.engine.pooling_input import PoolingInput
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.pooling_outputs import PoolingOutput, PoolingRequestOutput
from jengine.pooling_params import PoolingParams
from jengine.server.errors import ApiError
from jengine.server.formats.usage import Usage, usage
from jengine.server.http.request_head import request_id_of
from jengine.server.http.sse import DONE, Chunks
from jengine.server.pooling.fields import InputFields, PoolingFields, check_common, inputs_of
from jengine.server.pooling.types import ListResponse
from jengine.server.serving.generation import Outputs, Prepared
from jengine.server.serving.service import Service
from jengine.text.chat_template import render_chat

Pooled = Sequence[PoolingRequestOutput[PoolingOutput]]


def require(service: Service, task: PoolingTask, path: str) -> None:
    """Raise ApiError 404 if the model's task is another one."""
    found = pooling_input(service)
    try:
        found.check_task(task)
    except RequestError as error:
        if task in found.config.tasks:
            raise
        raise ApiError(404, f"{path}: {error}") from error


def pooling_input(service: Service) -> PoolingInput:
    """The model's checker of pooling parameters."""
    found = service.check_serving().front.session.input_processor.pooling
    assert found is not None, "the route is for pooling models"
    return found


class PoolingJob:
    """A validated pooling request. Subclasses define prompts and response body."""

    stream = False
    stream_end = DONE
    prefix = "pooling"

    def __init__(
        self, service: Service, http: Request, request: PoolingFields, task: PoolingTask
    ) -> None:
        check_common(request)
        self.service = service
        self.request = request
        self.given: msgspec.Struct = request  # including the inputs
        self.model, self.adapter = service.live.adapters.checked(request.model)
        self.pooling = Pooling(service.live.front, "server")
        self.task = task
        self.params = self._params()
        self.client_id = request_id_of(http, request.request_id)
        self.request_id = f"{self.prefix}-{self.client_id}"
        self.created = int(time.time())
        self.places = self.count()

    def count(self) -> int:
        """Number of prompts."""
        raise NotImplementedError

    def prompts(self) -> list[Any]:
        """Rendered prompts. Called in a thread."""
        raise NotImplementedError

    def body(self, pooled: Pooled) -> msgspec.Struct:
        raise NotImplementedError

    async def prepare(self) -> Prepared:
        given = msgspec.structs.asdict(self.given)
        doubtful = given.get("chat_template") is not None
        lane = self.service.live.rendering.lane(given, doubtful=doubtful)
        prompts = await lane.run(self.prompts)
        if self.request.cache_salt is not None:
            for prompt in prompts:
                prompt["cache_salt"] = self.request.cache_salt
        params = [self.params] * len(prompts)
        return Prepared(prompts, params, self.request.priority or 0, self.adapter)

    def pooled(self, outputs: Sequence[RequestOutput]) -> Pooled:
        """Collect the pooled results of all prompts."""
        return [self.pooling.output(one, self.params) for one in outputs]

    def whole(self, outputs: Sequence[RequestOutput]) -> msgspec.Struct:
        return self.body(self.pooled(outputs))

    def chunks(self, outputs: Outputs) -> Chunks:
        """Never called: nothing is streamed."""
        raise AssertionError("a pooled answer is not streamed")

    def listed(self, pooled: Pooled, data: list[Any]) -> ListResponse:
        """Build OpenAI's list response."""
        return ListResponse(
            id=self.request_id, created=self.created, model=self.model, data=data,
            usage=self.usage(pooled),
        )  # fmt: skip

    def usage(self, pooled: Pooled) -> Usage:
        """Count prompt tokens."""
        wanted = self.service.settings.enable_prompt_tokens_details
        cached = sum(max(one.num_cached_tokens, 0) for one in pooled) if wanted else None
        return usage(sum(len(one.prompt_token_ids) for one in pooled), 0, cached)

    def _params(self) -> PoolingParams:
        dimensions = getattr(self.request, "dimensions", None)
        params = PoolingParams(
            task=self.task, dimensions=dimensions, use_activation=self.request.use_activation
        )
        return self.pooling.model("encode").own_params(params)


class InputJob(PoolingJob):
    """Pools each input separately. Subclasses define the item of the response."""

    def count(self) -> int:
        """Number of inputs."""
        self.inputs = inputs_of(cast(InputFields, self.request), self.service.settings)
        return len(self.inputs)

    def prompts(self) -> list[Any]:
        """Texts and token ids unchanged, conversations rendered by the chat template."""
        request = cast(InputFields, self.request)
        rendering = self.service.live.rendering
        special = request.add_special_tokens
        how = self.request.tokenization(add_special_tokens=special)
        if isinstance(self.inputs[0], list) and not isinstance(self.inputs[0][0], int):
            return [rendering.conversation(self._chat(one), how) for one in self.inputs]
        return [rendering.prompt(one, how) for one in self.inputs]

    def item(self, index: int, data: np.ndarray) -> msgspec.Struct:
        """Response item of one input."""
        raise NotImplementedError

    def body(self, pooled: Pooled) -> ListResponse:
        items = [self.item(index, one.outputs.data) for index, one in enumerate(pooled)]
        return self.listed(pooled, items)

    def _chat(self, messages: list[Any]) -> str:
        request, live = cast(InputFields, self.request), self.service.live
        given = live.engine.args.chat_template
        usual = None if given is None else str(given)
        trusted = self.service.settings.trust_request_chat_template
        if request.chat_template is not None and not trusted:
            raise ApiError(
                400,
                "Chat template is passed with request, but --trust-request-chat-template is not "
                "set. Refused for security reasons.",
                param="chat_template",
            )
        return render_chat(
            live.rendering.tokenizer,
            messages,
            chat_template=request.chat_template or usual,
            add_generation_prompt=bool(request.add_generation_prompt),
            continue_final_message=bool(request.continue_final_message),
            chat_template_kwargs=request.chat_template_kwargs,
            content_format=self.service.settings.chat_template_content_format,
        )
