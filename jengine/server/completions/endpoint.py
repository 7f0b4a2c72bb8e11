"""POST /v1/completions, JSON or streamed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from jengine.beam_search import BeamSearchParams
from jengine.outputs import CompletionOutput, RequestOutput
from jengine.prompts import TokensPrompt
from jengine.sampling_params import SamplingParams
from jengine.server.completions.fields import CompletionRequest, check_completion, prompts_of
from jengine.server.completions.texts import CompletionTexts
from jengine.server.completions.types import (
    ChunkChoice,
    CompletionChoice,
    CompletionChunk,
    CompletionResponse,
)
from jengine.server.formats.request_metrics import told_metrics
from jengine.server.formats.sampling_fields import answer_length, sampling_params, tokenization
from jengine.server.formats.structured import format_field
from jengine.server.formats.usage import UsageWanted, usage, whole_usage
from jengine.server.http.events import ChoiceEvents, event
from jengine.server.http.request_head import request_id_of
from jengine.server.http.sse import DONE, Chunks
from jengine.server.serving.generation import Outputs, Prepared, answer, read_request
from jengine.server.serving.grammar_check import check_grammar
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
        for one in params[:1]:  # all prompts share one grammar
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


class CompletionProgress:
    """Stream state of one choice."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self.tokens = 0
        self.offset = 0  # text offset of the next token


class CompletionChunks:
    """Converts the outputs of one request into text_completion stream events."""

    def __init__(
        self, request: CompletionRequest, service: Service, id: str, created: int, model: str
    ) -> None:
        self.request = request
        self.texts = CompletionTexts(request, service)
        self.wanted = UsageWanted(request, service.settings)
        self.settings = service.settings
        self.head = {"id": id, "created": created, "model": model}
        self.plain = ChoiceEvents(CompletionChunk(**self.head, choices=[]))
        self.n = request.n or 1
        self.progress: dict[int, CompletionProgress] = {}
        self.prompts: dict[int, RequestOutput] = {}  # latest output per prompt

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all events except the final [DONE]; the events of one output are joined."""
        try:
            async for prompt, output in outputs:
                self.prompts[prompt] = output
                if events := self._events(prompt, output):
                    yield events
            if self.wanted.at_end:
                yield event(self._last())
        finally:
            await outputs.aclose()

    def _events(self, prompt: int, output: RequestOutput) -> bytes:
        events = []
        for one in output.outputs:
            choice = self._choice(prompt * self.n + one.index, output, one)
            if choice is not None:
                events.append(self._event(output, choice))
        return b"".join(events)

    def _choice(
        self, index: int, output: RequestOutput, one: CompletionOutput
    ) -> ChunkChoice | None:
        """Return the choice of the next stream chunk, or None if nothing is new."""
        progress = self.progress.get(index)
        if progress is None:
            progress = self.progress[index] = CompletionProgress()
        ends = one.finish_reason is not None and not progress.ended
        if not (ends or one.token_ids or one.text):
            return None
        first, progress.begun, progress.ended = not progress.begun, True, ends
        echo, ids = bool(self.request.echo) and first, bool(self.request.return_token_ids)
        logprobs = self.texts.logprobs(output, one, echo=echo, offset=progress.offset)
        if logprobs is not None and logprobs.tokens:
            progress.offset = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
        progress.tokens += len(one.token_ids)
        return ChunkChoice(
            index=index,
            text=self.texts.text(output, one, echo=echo),
            logprobs=logprobs,
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
            prompt_token_ids=output.prompt_token_ids if echo or (ids and first) else None,
            token_ids=one.token_ids if ids else None,
        )

    def _event(self, output: RequestOutput, choice: ChunkChoice) -> bytes:
        names_server = choice.finish_reason is not None and not self.wanted.at_end
        if not (names_server or self.wanted.always):
            return self.plain.of(choice)
        chunk = CompletionChunk(**self.head, choices=[choice])
        if self.wanted.always:
            tokens = self.progress[choice.index].tokens
            chunk.usage = usage(len(output.prompt_token_ids), tokens, untold=UNSET)
        if names_server:
            chunk.system_fingerprint = FINGERPRINT
        return event(chunk)

    def _last(self) -> CompletionChunk:
        """Return the usage chunk that ends the stream."""
        outputs = self.prompts.values()
        cached = sum(max(output.num_cached_tokens, 0) for output in outputs)
        counts = usage(
            sum(len(output.prompt_token_ids) for output in outputs),
            sum(one.tokens for one in self.progress.values()),
            cached if self.settings.enable_prompt_tokens_details else None,
            untold=UNSET,
        )
        return CompletionChunk(
            **self.head,
            choices=[],
            usage=counts,
            metrics=told_metrics(list(outputs), self.settings) or UNSET,
            system_fingerprint=FINGERPRINT,
        )
