"""AsyncLLM: the engine inside an asyncio program, in the same process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jengine.api import parameters
from jengine.api.answer_stream import AnswerStream, Prepare, Reader
from jengine.api.arguments import chat_options, refuse_later
from jengine.api.async_requests import AsyncRequests, PauseMode
from jengine.api.base import BaseLLM
from jengine.api.collective import collective_rpc
from jengine.api.done import Done
from jengine.api.parameters import OnInflight
from jengine.api.profiling import trace_folder
from jengine.api.stats import EngineStats
from jengine.assembly.engine import Engine
from jengine.assembly.values import one_of
from jengine.engine.answer import Answer
from jengine.engine.timing import Arrival
from jengine.errors import EngineDead, RequestError, UnsupportedFeature
from jengine.executor.protocol import WorkerHealth
from jengine.metrics.reader import Metric
from jengine.sampling_params import SamplingParams

# Seconds between two checks whether all requests have ended.
GLANCE = 0.01


class AsyncLLM(BaseLLM):
    """`async for output in engine.generate(prompt, params, request_id)`.

    Any number of tasks, of any number of event loops, may use one engine.
    """

    def _hold(self, engine: Engine) -> None:
        if engine.processes > 1:
            engine.client.shutdown()
            raise UnsupportedFeature(
                "AsyncLLM over several processes is not built yet: their requests would come in "
                "different orders. Use LLM, or a mesh of this process's own devices."
            )
        super()._hold(engine)
        self._requests = AsyncRequests(engine.session)

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **later: Any,
    ) -> AnswerStream:
        """Outputs of one request as they grow. Leaving the loop, or cancelling, aborts it.

        A reader that is slower than the engine gets everything since its last read in one output.
        """
        refuse_later("generate", later)

        def submit(reader: Reader) -> Answer:
            given = prompt
            if tokenization_kwargs is not None:
                (given,) = self._front.tokenized([prompt], tokenization_kwargs)
            return self._submit(given, sampling_params, request_id, priority, reader)

        return self._requests.stream(submit, self._compiling(sampling_params))

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> AnswerStream:
        """`generate` for one conversation, a list of messages; options as for `LLM.chat`."""
        given = chat_options("chat", options)

        def submit(reader: Reader) -> Answer:
            prompts = self._front.chat_prompts(messages, given)
            if len(prompts) != 1:
                raise RequestError(
                    f"chat: {len(prompts)} conversations; expected one. Call chat once for each."
                )
            return self._submit(prompts[0], sampling_params, request_id, priority, reader)

        return self._requests.stream(submit, self._compiling(sampling_params))

    def _compiling(self, params: SamplingParams | None) -> Prepare | None:
        """What compiles a request's grammar, if it has one, so that others need not wait for it."""
        if not isinstance(params, SamplingParams) or params.structured_outputs is None:
            return None
        return partial(self._front.session.input_processor.grammar, params.structured_outputs)

    def _submit(
        self,
        prompt: Any,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        reader: Reader,
    ) -> Answer:
        self.engine.check_leaves()
        return self._front.session.submit(
            prompt,
            self._front.default_params() if params is None else params,
            request_id=request_id,
            priority=priority,
            reader=reader,
            arrival=Arrival(reader.arrival),
        )

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their readers get a last output with the tokens so far."""
        self.engine  # noqa: B018 - raises if it was shut down
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            await asyncio.to_thread(self._requests.abort, one)

    # --- the engine ------------------------------------------------------------------------

    async def stats(self) -> EngineStats:
        """Counts of requests, cache use and compiled programs."""
        return await asyncio.to_thread(self._front.stats)

    async def get_metrics(self, prefix: Literal["jengine", "vllm"] = "jengine") -> list[Metric]:
        """Every counter, gauge and histogram as it is now; as `LLM.get_metrics`."""
        return await asyncio.to_thread(self._front.get_metrics, prefix)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; as `LLM.reset_prefix_cache`."""
        return await asyncio.to_thread(self._front.reset_prefix_cache, reset_running_requests)

    async def health(self, *, probe: bool = False) -> list[WorkerHealth]:
        """The health of every process that runs steps; as `LLM.health`."""
        return await asyncio.to_thread(self._front.health, probe)

    async def call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method in every process that runs steps; as `LLM.call_workers`."""
        return await asyncio.to_thread(self._front.call_workers, method, arguments)

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call in every process that runs steps; as `LLM.collective_rpc`."""
        return await asyncio.to_thread(collective_rpc, self._front, method, timeout, args, kwargs)

    async def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait until every program is compiled; as `LLM.wait_until_warm`."""
        return await asyncio.to_thread(self.engine.wait_until_warm, timeout)

    async def update_params(
        self, params: Any, *, donate: bool = False, on_inflight: OnInflight = "finish"
    ) -> int:
        """Use other parameters, between two steps; as `LLM.update_params`.

        With "finish", requests that come meanwhile wait and run with the new ones. While generation
        is paused nothing waits: requests that were kept go on with the new ones at resume.
        """
        return await asyncio.to_thread(
            parameters.update_params,
            self.engine, params, donate, on_inflight, self._requests.finish_all,
        )  # fmt: skip

    async def save(
        self,
        path: str | Path,
        format: Literal["safetensors", "orbax"] = "safetensors",
        *,
        overwrite: bool = False,
    ) -> None:
        """Write the parameters in use as a model folder; as `LLM.save`."""
        await asyncio.to_thread(parameters.save, self.engine, path, format, overwrite)

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """Run no more steps until `resume_generation`; it returns when the last one has ended.

        Requests that are open are aborted ("abort"), finished first ("wait"), or keep what they
        have and go on at the resume ("keep"). Requests that come meanwhile wait for the resume, and
        one that is aborted meanwhile gets its last output then. `clear_cache` forgets the prefix
        cache; kept requests are then computed again from the tokens that they have.
        """
        one_of("mode", mode, ("abort", "wait", "keep"))
        self._front.session.client.check_alive()
        await asyncio.to_thread(self._requests.pause, mode)
        if clear_cache:
            await self.reset_prefix_cache(reset_running_requests=True)

    async def resume_generation(self) -> None:
        """Run steps again after `pause_generation`."""
        self.engine  # noqa: B018 - raises if it was shut down
        await asyncio.to_thread(self._requests.resume)

    async def is_paused(self) -> bool:
        """Whether generation is paused."""
        return self._requests.paused

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what the devices do; as `LLM.start_profile`."""
        await self.call_workers(
            "start_profile", folder=trace_folder(self.engine.args, profile_prefix)
        )

    async def stop_profile(self) -> None:
        """Write what was recorded since start_profile()."""
        await self.call_workers("stop_profile")

    async def write_recording(self) -> str:
        """Write the last steps to a file; as `LLM.write_recording`."""
        return (await self.call_workers("write_recording"))[0]

    async def is_tracing_enabled(self) -> bool:
        """Whether requests are traced: `otlp_traces_endpoint` was given."""
        return self.engine.args.otlp_traces_endpoint is not None

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Return when no request is open; TimeoutError after so many seconds."""
        end = time.monotonic() + drain_timeout
        while self._front.session.open_answers:
            if time.monotonic() > end:
                raise TimeoutError(f"requests are still running after {drain_timeout} seconds")
            await asyncio.sleep(GLANCE)

    async def check_health(self) -> None:
        """Raise EngineDead if the engine has stopped. Never waits for a step."""
        self._front.session.client.check_alive()

    @property
    def errored(self) -> bool:
        """Whether the engine has stopped."""
        return self._death() is not None

    @property
    def is_running(self) -> bool:
        """Whether new requests are accepted."""
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has stopped."""
        return self.errored

    @property
    def dead_error(self) -> BaseException:
        """The error that every request gets once the engine has stopped."""
        return self._death() or EngineDead("this engine has stopped; create a new one.")

    def _death(self) -> EngineDead | None:
        try:
            self._front.session.client.check_alive()
        except EngineDead as error:
            return error
        return None

    def shutdown(self) -> Done:
        """End every request and free the device memory. Calling it twice is harmless.

        All is done when it returns; `await engine.shutdown()` works as well.
        """
        if self._front.leave() is not None:
            self._requests.shutdown()
        return Done()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()
