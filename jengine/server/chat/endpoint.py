"""POST /v1/chat/completions, JSON or streamed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jengine.beam_search import BeamSearchParams
from jengine.outputs import RequestOutput
from jengine.prompts import TokensPrompt
from jengine.sampling_params import SamplingParams
from jengine.server.chat.chunks import ChatChunks
from jengine.server.chat.fields import ChatRequest, check_chat
from jengine.server.chat.rendering import lane_of_chat, rendered_chat
from jengine.server.chat.texts import ChatTexts
from jengine.server.chat.types import ChatResponse
from jengine.server.formats.logprobs import prompt_logprobs
from jengine.server.formats.request_metrics import told_metrics
from jengine.server.formats.sampling_fields import answer_length, sampling_params, tokenization
from jengine.server.formats.structured import format_field, structured_outputs
from jengine.server.formats.usage import whole_usage
from jengine.server.http.body import ignore
from jengine.server.http.request_head import request_id_of
from jengine.server.http.sse import DONE, Chunks
from jengine.server.serving.generation import Outputs, Prepared, answer, read_request
from jengine.server.serving.grammar_check import check_grammar
from jengine.server.serving.service import Service
from jengine.server.version import FINGERPRINT
from jengine.structured_outputs import StructuredOutputsParams, at_place
from jengine.text.chat_images import ImagePart
from jengine.text.chat_parser import end_of_reasoning, needs_special_tokens


async def chat_completions(service: Service, http: Request) -> Response:
    """Answer a conversation."""
    request = await read_request(service, http, ChatRequest, check_chat)
    return await answer(service, http, ChatJob(service, http, request))


class ChatJob:
    """A chat completion request, from its body to its response."""

    stream_end = DONE

    def __init__(self, service: Service, http: Request, request: ChatRequest) -> None:
        self.service = service
        self.http = http
        self.request = request
        self.model, self.adapter = service.live.adapters.checked(request.model)
        self.stream = bool(request.stream)
        self.places = request.n or 1
        self.client_id = request_id_of(http, request.request_id)
        self.request_id = f"chatcmpl-{self.client_id}"
        self.created = int(time.time())
        self.texts = ChatTexts(request, service)

    async def prepare(self) -> Prepared:
        """Render the chat template and compute max_tokens of each choice."""
        prompt = await self.rendered()
        if self.request.cache_salt is not None:
            prompt["cache_salt"] = self.request.cache_salt
        self.texts.prompt = prompt.get("prompt", "")
        params = self._params(prompt)
        field = "tools" if self.request.forces_calls else format_field(self.request)
        await check_grammar(self.service.live, params, field)
        return Prepared([prompt], [params], self.request.priority or 0, self.adapter)

    async def rendered(self) -> TokensPrompt:
        """Apply the chat template and tokenize."""
        rendering, options = self.service.live.rendering, self.request.mm_processor_kwargs
        prompt, images = await lane_of_chat(rendering, self.request).run(self._rendered)
        return await rendering.with_images(prompt, images, options)

    def _rendered(self) -> tuple[TokensPrompt, list[ImagePart]]:
        live = self.service.live
        chat = rendered_chat(live, self.service.settings, self.request)
        ignore(self.http, chat.unread)
        return live.rendering.conversation(chat.text, tokenization(self.request)), chat.images

    def _params(self, prompt: TokensPrompt) -> SamplingParams | BeamSearchParams:
        request, live = self.request, self.service.live
        newer = request.max_completion_tokens is not None
        length = answer_length(
            request.max_completion_tokens if newer else request.max_tokens,
            live.engine.default_params.get("max_tokens"),
            len(prompt["prompt_token_ids"]),
            live.engine.schedule.max_model_len,
            "max_completion_tokens" if newer else "max_tokens",
        )
        scores = request.prompt_logprobs
        if scores is None and request.echo and not request.stream:
            scores = request.top_logprobs or 0
        chosen: dict[str, Any] = {
            "max_tokens": length,
            "logprobs": (request.top_logprobs or 0) if request.logprobs else None,
            "prompt_logprobs": scores,
            "structured_outputs": self._structured(),
        }
        parsers = self.texts.reasoning_parser, self.texts.tool_parser
        special = live.rendering.tokenizer.special_texts
        if needs_special_tokens(*parsers, special):
            chosen["skip_special_tokens"] = False
        return sampling_params(request, live.engine.default_params, self.service.settings, **chosen)

    def _structured(self) -> StructuredOutputsParams | None:
        """Structured-output constraint of the answer, applied after the reasoning."""
        asked = forced_calls(self.request) or structured_outputs(self.request)
        if asked is None or self.service.settings.grammar_in_reasoning:
            return asked
        end = end_of_reasoning(self.texts.reasoning_parser, self.texts.prompt)
        return asked if end is None else replace(asked, begins_after=end)

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatResponse:
        """Body of the JSON response."""
        output, request, texts = outputs[0], self.request, self.texts
        answers = [texts.answer() for _ in output.outputs]
        choices = [texts.choice(*pair) for pair in zip(output.outputs, answers, strict=True)]
        scores = output.prompt_logprobs
        return ChatResponse(
            id=self.request_id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=whole_usage(
                outputs,
                self.service.settings,
                texts.reasoning_tokens(answers),
                texts.created_cache_tokens(output),
            ),
            metrics=told_metrics(outputs, self.service.settings),
            system_fingerprint=FINGERPRINT,
            prompt_logprobs=None if scores is None else prompt_logprobs(scores),  # type: ignore[arg-type]
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
            prompt_text=self.texts.prompt if request.return_prompt_text else None,
            kv_transfer_params=output.kv_transfer_params or None,
        )

    def chunks(self, outputs: Outputs) -> Chunks:
        chunks = ChatChunks(
            self.texts, self.service.settings, self.request_id, self.created, self.model
        )
        return chunks.of(outputs)


ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}
SEPARATED = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


def forced_calls(request: ChatRequest) -> StructuredOutputsParams | None:
    """Return the JSON schema that forces tool calls, or None if tool_choice forces none.

    For a named function it is the schema of its arguments, otherwise that of a list of calls.
    """
    tools = [tool["function"] for tool in request.tools or ()]
    if request.forced_name is not None:
        named = next(tool for tool in tools if tool["name"] == request.forced_name)
        return _written(_parameters(named))
    if request.tool_choice != "required":
        return None
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(*pair) for pair in enumerate(tools)]},
    }
    if request.parallel_tool_calls is False:
        schema["maxItems"] = 1
    return _written(schema)


def _written(schema: Mapping[str, Any]) -> StructuredOutputsParams:
    """Constrain to a JSON schema without whitespace except one space after commas and colons: the
    form in which models write calls, and which fits short token limits."""
    return StructuredOutputsParams(json={**schema, "x-guidance": SEPARATED})


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(function.get("parameters") or ANYTHING)


def _call(index: int, function: Mapping[str, Any]) -> dict[str, Any]:
    """Schema of a call of the tool with this index."""
    place = f"#/items/anyOf/{index}/properties/parameters"
    parameters = at_place(_parameters(function), place)
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [function["name"]]},
                       "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }  # fmt: skip
