"""AsyncLLM: the engine inside an asyncio program, in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from jengine.adapters import LoRARequest
from jengine.api.answer_stream import AnswerStream, Prepare, StreamReader
from jengine.api.arguments import AnyParams, chat_options, refuse_others
from jengine.api.async_engine import AsyncEngine
from jengine.api.beams import opened_search, streamed_search
from jengine.api.pooling.front import Pooling
from jengine.beam_search import BeamSearchParams
from jengine.engine.answer import Answer
from jengine.engine.timing import Arrival
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.pooling_outputs import PoolingOutput, PoolingRequestOutput
from jengine.pooling_params import PoolingParams
from jengine.sampling_checks import integer
from jengine.sampling_params import SamplingParams


class AsyncLLM(AsyncEngine):
    """`async for output in engine.generate(prompt, params, request_id)`.

    Any number of tasks, of any number of event loops, may use one engine.
    """

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
        **others: Any,
    ) -> AnswerStream:
        """Outputs of one request as they grow. Leaving the loop, or cancelling, aborts it.

        A reader slower than the engine gets everything since its last read in one output.
        `trace_headers` has the W3C `traceparent` of the caller's span; `data_parallel_rank` chooses
        the replica.
        """
        refuse_others("generate", others)
        rank = data_parallel_rank
        if rank is not None:
            rank = integer("data_parallel_rank", rank, 0)

        def submit(reader: StreamReader) -> Answer:
            given = prompt
            if tokenization_kwargs is not None:
                (given,) = self._front.tokenized([prompt], tokenization_kwargs)
            arrival = Arrival(reader.arrival, (trace_headers or {}).get("traceparent"), rank)
            return self._submit(
                given, sampling_params, request_id, priority, lora_request, reader, arrival
            )

        return self._requests.stream(submit, self._compiling(sampling_params))

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Any,
    ) -> AnswerStream:
        """`generate` for one conversation, a list of messages; options as for `LLM.chat`."""
        given = chat_options("chat", options)

        def submit(reader: StreamReader) -> Answer:
            prompts = self._front.chat_prompts(messages, given)
            if len(prompts) != 1:
                raise RequestError(
                    f"chat: {len(prompts)} conversations; expected one. Call chat once for each."
                )
            return self._submit(
                prompts[0], sampling_params, request_id, priority, lora_request, reader
            )

        return self._requests.stream(submit, self._compiling(sampling_params))

    async def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool one prompt: yields one output, for the task of `pooling_params` or the model's
        default."""
        refuse_others("encode", others)
        pooling = Pooling(self._front, type(self).__name__)
        params = pooling.model("encode").own_params(pooling_params or PoolingParams())

        def submit(reader: StreamReader) -> Answer:
            (given,) = pooling.prompts([prompt], tokenization_kwargs)
            return self._submit(given, params, request_id, priority, lora_request, reader)

        stream = self._requests.stream(submit)
        try:
            async for output in stream:
                yield pooling.output(output, params)
        finally:
            await stream.aclose()

    async def beam_search(
        self,
        prompt: Any,
        params: BeamSearchParams,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield one output: the likeliest sequences of one prompt, each a completion, best first.

        As `LLM.beam_search`, but completions exclude the prompt and the EOS, as over HTTP.
        """
        session = self._front.session
        search = await asyncio.to_thread(opened_search, session, prompt, params)
        open_stream = partial(self.generate, lora_request=lora_request)
        stream = streamed_search(search, open_stream, request_id or f"beams-{uuid4().hex}")
        try:
            async for output in stream:
                yield output
        finally:
            await stream.aclose()

    def _compiling(self, params: SamplingParams | None) -> Prepare | None:
        """Return a function that compiles the request's grammar, to run outside the input
        thread."""
        if not isinstance(params, SamplingParams) or params.structured_outputs is None:
            return None
        return partial(self._front.session.input_processor.grammar, params.structured_outputs)

    def _submit(
        self,
        prompt: Any,
        params: AnyParams | None,
        request_id: str | None,
        priority: int,
        lora_request: LoRARequest | None,
        reader: StreamReader,
        arrival: Arrival | None = None,
    ) -> Answer:
        self.engine.check_leaves()
        return self._front.session.submit(
            prompt,
            self._front.default_params() if params is None else params,
            request_id=request_id,
            priority=priority,
            lora_request=lora_request,
            reader=reader,
            arrival=arrival or Arrival(reader.arrival),
        )

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their readers get a last output with the tokens so far."""
        self.engine  # noqa: B018 - raises if it was shut down
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            await asyncio.to_thread(self._requests.abort, one)
