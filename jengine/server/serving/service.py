"""The service: the endpoints' only access to the engine. Owns the `Front`, requests, names and
admission.

In: rendered prompts with their parameters. Out: outputs as they grow. Must not know HTTP or JSON.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from jengine.adapters import LoRARequest
from jengine.api.answer_stream import AnswerStream, StreamReader
from jengine.api.async_requests import AsyncRequests
from jengine.api.beams import opened_search, streamed_search
from jengine.api.front import Front
from jengine.api.metrics import exporter_of
from jengine.assembly.engine import Engine
from jengine.beam_search import BeamSearchParams
from jengine.engine.answer import Answer
from jengine.engine.input_processor import AnyParams
from jengine.engine.timing import Arrival
from jengine.errors import EngineDead
from jengine.metrics.front_stats import LaneCounts
from jengine.metrics.merged_metrics import MetricFamily, families_of
from jengine.metrics.registry import process_registry
from jengine.outputs import Counts, RequestOutput
from jengine.prompts import TokensPrompt
from jengine.server.errors import ApiError
from jengine.server.http.text_limits import TextLimits
from jengine.server.peers.board import Board, BoardField
from jengine.server.peers.channel import Peers
from jengine.server.phase import Phase, check_serving
from jengine.server.serving.admission import AdmissionBounds
from jengine.server.serving.ignored_fields import IgnoredFields
from jengine.server.serving.model_names import ModelNames
from jengine.server.serving.progress_watch import ProgressWatch
from jengine.server.serving.rendering import Rendering
from jengine.server.serving.response_store import ResponseStore
from jengine.server.serving.served_adapters import ServedAdapters
from jengine.server.serving.work_threads import ThreadLane
from jengine.server.settings import ServerSettings
from jengine.text.response_template import load_response_template


@dataclass
class Live:
    """The server's parts while its engine runs."""

    engine: Engine
    front: Front
    requests: AsyncRequests
    rendering: Rendering
    names: ModelNames
    adapters: ServedAdapters
    admission: AdmissionBounds


class Service:
    """The engine behind the routes, from start-up to shutdown."""

    def __init__(self, settings: ServerSettings, peers: Peers | None = None) -> None:
        """`peers`: the server's other API processes."""
        self.settings = settings
        self.peers = peers or Peers(Board.alone())
        self.phase = Phase.STARTING
        self.progress: str | None = None  # start-up progress, for people
        self.watch: ProgressWatch | None = None  # None during start-up
        self.problem: str | None = None  # a core's problem, for people
        self.counts = Counts()  # last known
        self.registry = process_registry()  # Prometheus metrics
        self.ignored_fields = IgnoredFields()
        self.responses: ResponseStore[Any] = ResponseStore(
            -(-settings.max_stored_responses // self.peers.count),
            -(-settings.max_stored_response_bytes // self.peers.count),
            settings.response_store_seconds,
        )
        # Minimum limits, until the engine's context length is known.
        self.text_limits = TextLimits.of(settings.max_text_chars, settings.max_messages, 0)
        self._live: Live | None = None
        # Suffixes make request ids unique over all processes. A counter, since fetching random
        # bytes per request releases the GIL.
        self._salt, self._numbers = secrets.token_hex(4), itertools.count()

    def note_progress(self, words: str) -> None:
        """Record start-up progress for /health. Thread-safe."""
        self.progress = words

    def adopt(self, engine: Engine) -> None:
        """Attach the started engine: from now on requests are served."""
        settings = self.settings
        if "hf" in (settings.reasoning_parser, settings.tool_call_parser):
            tokenizer = engine.session.input_processor.prompts.required_tokenizer()
            load_response_template(tokenizer.response_template)  # fails now rather than per request
        names = ModelNames.of(engine, settings.served_model_name)
        self.text_limits = TextLimits.of(
            settings.max_text_chars, settings.max_messages, engine.schedule.max_model_len
        )
        self._live = Live(
            engine,
            Front("server", engine),
            AsyncRequests(engine.session),
            Rendering(
                engine.session.input_processor.prompts,
                self.text_limits,
                settings.render_timeout,
                self.peers.count,
            ),
            names,
            ServedAdapters(engine, names, settings.lora_modules),
            AdmissionBounds(
                settings.queue_limit(engine.schedule.max_num_seqs),
                settings.max_num_queued_tokens,
                self.peers.board,
            ),
        )
        name, prefix = names.default, settings.metrics_compat
        self.registry.register(exporter_of(engine, name, prefix))
        requests = self._live.requests
        self.watch = ProgressWatch(engine, lambda: requests.paused)
        self.phase, self.progress = Phase.SERVING, None

    @property
    def live(self) -> Live:
        """The running engine. Raises ApiError 503 during start-up."""
        if self._live is None:
            raise ApiError(503, "The engine is still starting.")
        return self._live

    def check_serving(self) -> Live:
        """`live`, but also raises ApiError 503 while no requests are accepted."""
        check_serving(self.phase)
        return self.live

    def check_kind(self, kind: str | None, path: str) -> None:
        """Raise ApiError 404 if the route is for generative models and this one pools, or vice
        versa."""
        if kind is None or self._live is None:
            return
        pools = self._live.front.session.input_processor.pooling is not None
        own = "pooling" if pools else "generate"
        if kind == own:
            return
        needs = {
            "generate": "a model that generates text",
            "pooling": "a pooling model (--runner pooling)",
        }
        raise ApiError(
            404,
            f"{path[1:]} needs {needs[kind]}; {self._live.names.default} is not one.",
        )

    # --- requests --------------------------------------------------------------------------

    def generate(
        self,
        prompt: TokensPrompt,
        params: AnyParams | BeamSearchParams,
        request_id: str,
        priority: int = 0,
        arrival: Arrival | None = None,
        adapter: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one prompt. `request_id` gets a suffix, as several prompts may share
        it."""

        def open_stream(prompt: TokensPrompt, params: AnyParams) -> AnswerStream:
            return self._stream(prompt, params, request_id, priority, arrival, adapter)

        if not isinstance(params, BeamSearchParams):
            return open_stream(prompt, params)
        search = opened_search(self.live.front.session, prompt, params)
        return streamed_search(search, open_stream, request_id)

    def _stream(
        self,
        prompt: TokensPrompt,
        params: AnyParams,
        request_id: str,
        priority: int,
        arrival: Arrival | None,
        adapter: LoRARequest | None,
    ) -> AnswerStream:
        live = self.live
        unique = f"{request_id}-{self._salt}{next(self._numbers):x}"

        def submit(reader: StreamReader) -> Answer:
            live.engine.check_leaves()
            return live.front.session.submit(
                prompt,
                params,
                request_id=unique,
                priority=priority,
                lora_request=adapter,
                reader=reader,
                arrival=arrival or Arrival(reader.arrival),
            )

        return live.requests.stream(submit)

    def abort(self, request_ids: Sequence[str] | None) -> int:
        """Abort requests by their public ids, or all. Returns how many."""
        live = self.live
        session = live.engine.session
        wanted = [
            answer.request_id
            for answer in session.open_answers
            if request_ids is None or known_ids(answer.request_id) & set(request_ids)
        ]
        for unique in wanted:
            session.abort(unique)
        live.requests.run_steps()
        return len(wanted)

    @property
    def open_requests(self) -> int:
        """Running and waiting completions of this process."""
        return 0 if self._live is None else self._live.admission.taken

    @property
    def all_open_requests(self) -> int:
        """Running and waiting completions of all API processes."""
        return self.peers.board.total(BoardField.TAKEN)

    # --- questions -------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Phase of this process."""
        return self.peers.board.phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.peers.board.phase = phase

    @property
    def server_phase(self) -> Phase:
        """Worst phase of all API processes."""
        if self.phase is Phase.DRAINING:  # other processes may have exited already
            return self.phase
        return self.peers.board.worst_phase(self.settings.stall_timeout)

    def own_families(self) -> list[MetricFamily]:
        """This process's metrics. Never waits for a step."""
        if self._live is not None:
            stats = self._live.engine.session.stats
            stats.rejections.update(self._live.admission.rejections)
            stats.ignored_fields = self.ignored_fields.count
            stats.lanes = {
                one.name: LaneCounts(one.busy, one.refused, one.given_up)
                for one in self._live.rendering.lanes
            }
        return families_of(self.registry)

    async def current_counts(self) -> Counts:
        """The engine's latest counters. Never waits for a step."""
        if self._live is not None:
            self.counts = self._live.engine.client.state().counts
        return self.counts

    @property
    def last_step_age(self) -> float | None:
        """Seconds since the engine last made progress; None while idle."""
        return None if self.watch is None else self.watch.age

    @property
    def stuck_lanes(self) -> list[ThreadLane]:
        """Pools whose threads are all past their time limits."""
        lanes = () if self._live is None else self._live.rendering.lanes
        return [one for one in lanes if one.is_stuck]

    def check_alive(self) -> None:
        """Set the phase to dead if the engine has died."""
        if self._live is None:
            return
        try:
            self._live.engine.client.check_alive()
        except EngineDead:
            self.phase = Phase.DEAD

    def shutdown(self) -> None:
        """Abort all requests and stop the engine. Idempotent."""
        live, self._live = self._live, None
        if live is None:
            return
        self.phase = Phase.DEAD
        live.rendering.close()
        live.front.leave()
        live.requests.shutdown()


def known_ids(unique: str) -> set[str]:
    """Public ids of a request: with and without the endpoint's prefix."""
    request_id = unique.rpartition("-")[0]
    return {request_id, request_id.partition("-")[2]}
