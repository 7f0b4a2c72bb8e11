"""POST /v1/completions: prompts in, continuations out, whole or streamed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from jengine.beam_search import BeamSearchParams
from jengine.outputs import RequestOutput
from jengine.prompts import TokensPrompt
from jengine.sampling_params import SamplingParams
from jengine.server.completions.chunks import CompletionChunks
from jengine.server.completions.fields import CompletionRequest, check_completion, prompts_of
from jengine.server.completions.texts import CompletionTexts
from jengine.server.completions.types import CompletionChoice, CompletionResponse
from jengine.server.formats.request_metrics import told_metrics
from jengine.server.formats.sampling_fields import answer_length, sampling_params, tokenization
from jengine.server.formats.structured import format_field
from jengine.server.formats.usage import whole_usage
from jengine.server.http.request_head import request_id_of
from jengine.server.http.sse import DONE, Chunks
from jengine.server.serving.generation import Outputs, Prepared, answer, read_request
from jengine.server.serving.grammars import check_grammar
from jengine.server.serving.service import Service
from jengine.server.version import FINGERPRINT

USUAL_LENGTH = 16


async def completions(service: Service, http: Request) -> Response:
    """Continue one prompt or several."""
    request = await read_request(service, http, CompletionRequest, check_completion)
    return await answer(service, http, CompletionJob(service, http, request))


class CompletionJob:
    """A completion request, from its body to its response."""

    stream_end = DONE

    def __init__(self, service: Service, http: Request, request: CompletionRequest) -> None:
        self.service = service
        self.request = request
        self.model, self.adapter = service.live.adapters.checked(request.model)
        self.given = prompts_of(request, service.settings)
        self.stream = bool(request.stream)
        self.n = request.n or 1
        self.places = self.n * len(self.given)
        self.client_id = request_id_of(http, request.request_id)
        self.request_id = f"cmpl-{self.client_id}"
        self.created = int(time.time())

    async def prepare(self) -> Prepared:
        """Tokenize the prompts and compute max_tokens of each."""
        rendering, how = self.service.live.rendering, tokenization(self.request)
        prompts = [await rendering.tokenized(given, how) for given in self.given]
        if self.request.cache_salt is not None:
            for prompt in prompts:
                prompt["cache_salt"] = self.request.cache_salt
        params = [self._params(prompt) for prompt in prompts]
        for one in params[:1]:  # all have the same grammar
            await check_grammar(self.service.live, one, format_field(self.request))
        return Prepared(prompts, params, self.request.priority or 0, self.adapter)

    def _params(self, prompt: TokensPrompt) -> SamplingParams | BeamSearchParams:
        request, live = self.request, self.service.live
        length = answer_length(
            request.max_tokens,
            live.engine.default_params.get("max_tokens", USUAL_LENGTH),
            len(prompt["prompt_token_ids"]),
            live.engine.schedule.max_model_len,
        )
        scores = request.prompt_logprobs
        if scores is None and request.echo:
            scores = request.logprobs
        return sampling_params(
            request, live.engine.default_params, self.service.settings,
            max_tokens=length or 1, logprobs=request.logprobs, prompt_logprobs=scores,
        )  # fmt: skip

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionResponse:
        """Body of the JSON response."""
        texts = CompletionTexts(self.request, self.service)
        choices: list[CompletionChoice] = []
        for output in outputs:
            for one in output.outputs:
                choices.append(texts.choice(len(choices), output, one))
        return CompletionResponse(
            id=self.request_id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=whole_usage(outputs, self.service.settings),
            metrics=told_metrics(outputs, self.service.settings),
            system_fingerprint=FINGERPRINT,
            kv_transfer_params=outputs[0].kv_transfer_params or None,
        )

    def chunks(self, outputs: Outputs) -> Chunks:
        chunks = CompletionChunks(
            self.request, self.service, self.request_id, self.created, self.model
        )
        return chunks.of(outputs)
