"""Requests of one front: validated prompts to an engine client, deltas back to answers.

All methods are thread-safe; `discard` may also run in a finalizer called by the garbage collector.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from jengine.adapters import AdapterLimits, LoRARequest
from jengine.engine.answer import Answer
from jengine.engine.client import EngineClient
from jengine.engine.input_processor import AnyParams, InputProcessor
from jengine.engine.loaded_adapters import Adapters
from jengine.engine.output_processor import OutputProcessor
from jengine.engine.timing import Arrival
from jengine.errors import EngineAsleep, RequestError
from jengine.metrics.front_stats import FrontStats
from jengine.metrics.stats_log import StatsLog
from jengine.metrics.tracing import Tracer
from jengine.outputs import TokenDelta
from jengine.request import WireRequest


class Session:
    """Submit prompts, call `step` while there is work, and take new outputs from the answers."""

    def __init__(
        self,
        input_processor: InputProcessor,
        client: EngineClient,
        log: StatsLog | None = None,
        tracer: Tracer | None = None,
        adapters: AdapterLimits | None = None,
        adapter_folder: Callable[[str], str] = str,
    ) -> None:
        self.input_processor = input_processor
        self.client = client
        self.log = log
        self.stats = FrontStats(input_processor.limits.max_model_len)
        self._answers = OutputProcessor(input_processor.tokenizer, self.stats, tracer)
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # around `_answers`
        self._refusal: str | None = None  # why new requests are refused; None: they are not
        self._entry = threading.Lock()  # around the registration and queueing of a new request
        self._discarded: deque[Answer] = deque()  # to be closed by the next `_opened`
        self.adapters = Adapters(client.ask, adapters, self._adapters_in_use, adapter_folder)
        self._unread: deque[tuple[float, list[TokenDelta]]] = deque()  # with the time of receipt

    @property
    def has_work(self) -> bool:
        return self.client.has_work

    @property
    def open_answers(self) -> list[Answer]:
        """Unfinished requests in order of arrival."""
        with self._opened() as answers:
            return answers.open_answers

    def submit(
        self,
        prompt: Any,
        params: AnyParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        taps: int = 0,
        lora_request: LoRARequest | None = None,
        reader: Any = None,
        arrival: Arrival | None = None,
    ) -> Answer:
        """Queue a prompt; if it raises, nothing of it is queued.

        `taps` is the number of a set of taps. `reader` is kept in the answer for the caller of
        `process` to notify. `arrival`: when the request arrived, if before this call.
        """
        arrival = arrival or Arrival(time.monotonic())
        self.client.check_alive()
        if self._refusal is not None:
            raise EngineAsleep(self._refusal)
        if request_id is not None and (not isinstance(request_id, str) or not request_id):
            raise RequestError(f"request_id={request_id!r}: expected a string that is not empty.")
        params = self.input_processor.own_params(params)
        rendered = self.input_processor.prompts.render(prompt)
        text = rendered.get("prompt")
        with self.adapters.held(lora_request) as adapter:
            wires = self.input_processor.wires(rendered, params, priority, taps, adapter)
            if lora_request is not None:
                wires = with_adapter_name(wires, lora_request)
            if arrival.replica is not None:
                wires = self._for_replica(arrival.replica, wires)
            with self._entry:
                with self._opened() as answers:
                    request_id = self._unused_id(answers) if request_id is None else request_id
                    if request_id in answers:
                        raise RequestError(f"request_id={request_id!r} is being answered already.")
                    answer = answers.open(request_id, text, params.reading, wires, reader, arrival)
                    answer.lora_request = lora_request
                self._add(answer)
        return answer

    def _for_replica(self, replica: int, wires: Sequence[WireRequest]) -> tuple[WireRequest, ...]:
        """Pin requests to one data-parallel replica. Raises RequestError."""
        count = len(self.client.state().counts.each)
        if not 0 <= replica < count:
            raise RequestError(f"data_parallel_rank {replica} is out of range [0, {count}).")
        return tuple(msgspec.structs.replace(wire, replica=replica) for wire in wires)

    def _adapters_in_use(self) -> set[str]:
        return {
            completion.wire.adapter
            for answer in self.open_answers
            for completion in answer.completions
        }

    def _add(self, answer: Answer) -> None:
        try:
            for completion in answer.completions:
                self.client.add(completion.wire)
        except BaseException:
            self.discard(answer)
            raise

    def _unused_id(self, answers: OutputProcessor) -> str:
        numbers = map(str, self._numbers)
        return next(number for number in numbers if number not in answers)

    def step(self) -> list[Answer]:
        """Run one step. Returns answers with new output."""
        self.receive()
        return self.process()

    def receive(self) -> None:
        """Wait for the engine's next deltas and keep them for `process`."""
        deltas = self.client.outputs()
        self._unread.append((time.monotonic(), deltas))

    def receive_rest(self) -> None:
        """Keep deltas that are ready for `process`; runs no step and does not wait."""
        self._unread.append((time.monotonic(), self.client.outputs(wait=False)))

    def process(self) -> list[Answer]:
        """Apply received deltas, which is where detokenization happens. Returns answers with new
        output. Another thread may call `receive` meanwhile."""
        news: list[Answer] = []
        with self._opened() as answers:
            while self._unread:
                at, deltas = self._unread.popleft()
                news += self._take(deltas, at, answers)
        return news

    def _take(
        self, deltas: Sequence[TokenDelta], at: float, answers: OutputProcessor
    ) -> list[Answer]:
        news = []
        for delta in deltas:
            taken = answers.take(delta, at)
            if taken is None:
                continue
            if taken.cut_short:
                self.client.abort(delta.request_id)
            if taken.has_news:
                news.append(taken.answer)
        if self.log is not None:
            self.log.tick()
        return news

    def abort(self, request_id: str) -> None:
        """Abort all completions of a request; a later step returns its last output."""
        with self._opened() as answers:
            answer = answers.answer(request_id)
        if answer is not None:
            self._abort(answer)

    def discard(self, answer: Answer) -> None:
        """Abort a request whose reader is gone.

        Only appends to queues, so the garbage collector may call it inside anything, including a
        step or this session.
        """
        if answer.is_open:
            answer.discarded = True
            self._discarded.append(answer)
            self._abort(answer)

    def fail_all(self, error: BaseException) -> list[Answer]:
        """Fail every open request with an error for its reader. Returns their answers."""
        with self._opened() as answers:
            failed = answers.open_answers
            for answer in failed:
                answers.close(answer, "error", time.monotonic())
                answer.fail(error)
                self._abort(answer)
        return failed

    def refuse_new(self, reason: str | None) -> None:
        """Refuse new requests with this reason; None accepts them again."""
        self._refusal = reason

    def close(self) -> None:
        """Flush traces. The client is shut down by its owner."""
        if self._answers.tracer is not None:
            self._answers.tracer.shutdown()

    @contextmanager
    def closed_to_new(self) -> Iterator[None]:
        """Block `submit` inside this context."""
        with self._entry:
            yield

    def _abort(self, answer: Answer) -> None:
        for completion in answer.completions:
            self.client.abort(completion.wire.request_id)

    @contextmanager
    def _opened(self) -> Iterator[OutputProcessor]:
        """Exclusive access to open requests, with discarded ones removed."""
        with self._lock:
            while self._discarded:
                self._answers.close(self._discarded.popleft(), "abort", time.monotonic())
            yield self._answers


def with_adapter_name(
    wires: Sequence[WireRequest], lora_request: LoRARequest
) -> tuple[WireRequest, ...]:
    """Add the adapter's user-visible name and number, for metrics and events."""
    name, number = lora_request.lora_name, lora_request.lora_int_id
    return tuple(
        msgspec.structs.replace(wire, adapter_name=name, adapter_number=number) for wire in wires
    )
