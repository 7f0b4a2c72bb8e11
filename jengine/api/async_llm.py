"""AsyncLLM: the engine inside an asyncio program, in the same process.

One task drives the engine while there is work; each step runs on one worker thread so that the
event loop stays free. Requests enter and leave between steps only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.api.summary import engine_summary
from jengine.assembly.args import EngineArgs
from jengine.assembly.build import Engine, build_engine
from jengine.assembly.progress import progress_factory
from jengine.errors import EngineDead, RequestError, UnsupportedFeature
from jengine.outputs import RequestOutput
from jengine.sampling_params import SamplingParams
from jengine.vllm_names import missing_attribute

Delivery = RequestOutput | BaseException


class AsyncLLM:
    """`async for output in engine.generate(prompt, params, request_id)`."""

    def __init__(self, model: str | Path, **settings: Any) -> None:
        self._engine: Engine | None = None
        args = EngineArgs.checked("AsyncLLM", model=model, **settings)
        self._engine = build_engine(args, progress_factory(args.show_progress))
        if self._engine.processes > 1:
            self._engine.session.core.shutdown()
            raise UnsupportedFeature(
                "AsyncLLM over several processes is not built yet: their requests would come in "
                "different orders. Use LLM, or a mesh of this process's own devices."
            )
        self._worker = ThreadPoolExecutor(1, "jengine-step")
        self._listeners: dict[str, asyncio.Queue[Delivery]] = {}
        self._driver: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Future[None]] = set()
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return engine_summary(self, self._engine)

    if not TYPE_CHECKING:  # a checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, name)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """An engine from an EngineArgs, as vLLM users write it."""
        return cls(**vars(engine_args))

    @property
    def engine(self) -> Engine:
        """The engine's parts, while it lives."""
        if self._engine is None:
            raise EngineDead("this AsyncLLM was shut down. Create a new one.")
        return self._engine

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one request as they grow. Leaving the loop, or cancelling, aborts it."""
        params = sampling_params or SamplingParams(**self.engine.default_params)
        # A task of its own: once begun it ends, so a request never enters unnoticed.
        entering = asyncio.create_task(self._enter(prompt, params, request_id, priority))
        try:
            request_id, arrived = await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(self._forget)
            raise
        try:
            while True:
                delivery = await arrived.get()
                if isinstance(delivery, BaseException):
                    raise delivery
                yield delivery
                if delivery.finished:
                    return
        finally:
            self._listeners.pop(request_id, None)
            await asyncio.shield(self._leave(request_id))

    async def abort(self, request_id: str) -> None:
        """End a request; whoever waits for it gets a last output with what there is."""
        async with self._turn():
            session = self.engine.session
            output = await self._run(lambda: session.abort(request_id))
        if output is not None:
            self._deliver(output)

    def get_tokenizer(self) -> Any:
        """The transformers tokenizer."""
        if self.engine.tokenizer is None:
            raise RequestError("this engine has no tokenizer (skip_tokenizer_init=True).")
        return self.engine.tokenizer.hf

    async def shutdown(self) -> None:
        """End every request and give memory back. Calling it twice is harmless."""
        if self._engine is None:
            return
        async with self._turn():
            engine, self._engine = self._engine, None
            await self._run(engine.session.core.shutdown)
        if self._driver is not None and not self._driver.done():
            await asyncio.gather(self._driver, return_exceptions=True)
        self._fail_all(EngineDead("the engine was shut down."))
        self._worker.shutdown()

    async def _enter(
        self, prompt: Any, params: SamplingParams, request_id: str | None, priority: int
    ) -> tuple[str, asyncio.Queue[Delivery]]:
        async with self._turn():
            session = self.engine.session
            name = await self._run(
                lambda: session.submit(prompt, params, request_id=request_id, priority=priority)
            )
            arrived = self._listeners[name] = asyncio.Queue()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return name, arrived

    def _forget(self, entering: asyncio.Task[tuple[str, asyncio.Queue[Delivery]]]) -> None:
        """Nobody waits any more for the request that has just entered."""
        if not entering.cancelled() and entering.exception() is None:
            request_id, _ = entering.result()
            self._listeners.pop(request_id, None)
            leaving = asyncio.ensure_future(self._leave(request_id))
            self._leaving.add(leaving)  # the event loop itself keeps no task alive
            leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, request_id: str) -> None:
        async with self._turn():
            if self._engine is not None:
                session = self._engine.session
                await self._run(lambda: session.discard(request_id))

    async def _drive(self) -> None:
        """Step while there is work. A failed step fails every request that is waiting."""
        try:
            while self._engine is not None and self._engine.session.has_work:
                async with self._turn():
                    if self._engine is None:
                        return
                    outputs = await self._run(self._engine.session.step)
                for output in outputs:
                    self._deliver(output)
        except Exception as error:  # noqa: BLE001 - handed on to every caller
            self._fail_all(error)

    def _turn(self) -> asyncio.Lock:
        """Held by whoever changes the session: a step, or a request that enters or leaves."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # one event loop after another may use an engine
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _deliver(self, output: RequestOutput) -> None:
        if output.request_id in self._listeners:
            self._listeners[output.request_id].put_nowait(output)

    def _fail_all(self, error: BaseException) -> None:
        for arrived in self._listeners.values():
            arrived.put_nowait(error)
