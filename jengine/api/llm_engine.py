"""LLMEngine: an engine stepped by its caller, for scripts written for vLLM's LLMEngine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from jengine.adapters import LoRARequest
from jengine.api.offline import OfflineEngine
from jengine.api.request_batches import RequestBatch
from jengine.assembly.engine import Engine
from jengine.engine.answer import Answer
from jengine.engine.timing import Arrival
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from jengine.sampling_params import SamplingParams


class LLMEngine(OfflineEngine):
    """Adds requests one by one, runs a step per call, and returns outputs as they grow.

    New code is better off with `LLM` (`generate`, or `stream` for outputs as they grow).
    """

    def _hold(self, engine: Engine) -> None:
        super()._hold(engine)
        self._batch = RequestBatch()
        self._open: dict[str, Answer] = {}  # by request id, until the last output is returned

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> str:
        """Queue a request.

        Args:
            request_id: Identifies the outputs; unique among open requests.
            prompt: A text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`.
            params: With `output_kind=RequestOutputKind.DELTA` outputs hold only new tokens.
            lora_request: The adapter, if any.
            tokenization_kwargs: Options of text.tokenization, such as truncate_prompt_tokens.
            trace_headers: The W3C `traceparent` of the caller's span.
            priority: With the policy "priority", lower runs first.

        Returns:
            The id.

        Raises:
            RequestError: The request is invalid; nothing is queued.
        """
        if not isinstance(params, SamplingParams):
            kind = type(params).__name__
            raise RequestError(f"params={kind}: expected SamplingParams. LLM has calls that pool.")
        if tokenization_kwargs is not None:
            (prompt,) = self._front.tokenized([prompt], tokenization_kwargs)
        answer = self._front.session.submit(
            prompt, params, request_id=request_id, priority=priority, lora_request=lora_request,
            reader=self._batch,
            arrival=Arrival(time.monotonic(), (trace_headers or {}).get("traceparent")),
        )  # fmt: skip
        self._open[request_id] = answer
        return request_id

    def step(self) -> list[RequestOutput]:
        """Run one step and return an output for each request that has new tokens.

        Raises:
            JengineError: A request has failed and is removed; the others continue.
        """
        self._answering.batches.step(self._batch)
        arrived, outputs = self._batch.arrived, list[RequestOutput]()
        while arrived:
            if outputs and arrived[0].error is not None:
                break  # the next call raises it
            answer = arrived.popleft()
            if self._open.get(answer.request_id) is not answer:
                continue  # aborted
            if answer.error is not None:
                del self._open[answer.request_id]
            output = answer.take()
            if output is not None:
                outputs.append(output)
                if output.finished:
                    del self._open[answer.request_id]
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has more outputs to return."""
        return bool(self._open)

    def get_num_unfinished_requests(self) -> int:
        """The number of requests that have not returned their last output."""
        return len(self._open)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Abort requests, which return no more outputs. Unknown ids are ignored."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            if (answer := self._open.pop(one, None)) is not None:
                self._front.session.discard(answer)
