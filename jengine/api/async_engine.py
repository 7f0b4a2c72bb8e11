"""Calls of AsyncLLM other than requests: parameters, pauses, sleep, shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from jengine.api import parameters
from jengine.api.async_requests import AsyncRequests, PauseMode
from jengine.api.base import BaseLLM
from jengine.api.offline import OfflineEngine
from jengine.api.parameters import OnInflight
from jengine.api.sleep_order import NewRequests, SleepOrder, waking
from jengine.assembly.engine import Engine
from jengine.assembly.processes.elastic import DRAIN_SECONDS, scale_replicas
from jengine.assembly.settings.values import one_of
from jengine.engine.questions import CoreQuestion
from jengine.errors import EngineDead, UnsupportedFeature
from jengine.weights.mapped_trees import Mapped

A = TypeVar("A", covariant=True)
P = ParamSpec("P")
# Poll interval while requests drain, in seconds.
GLANCE = 0.01


class AwaitedMethod(Protocol[P, A]):
    """Type of a coroutine method made by `awaited`."""

    def __get__(self, engine: Any, owner: Any) -> Callable[P, Coroutine[Any, Any, A]]: ...


def awaited(call: Callable[Concatenate[Any, P], A]) -> AwaitedMethod[P, A]:
    """Wrap a blocking method as a coroutine method that runs it by `asyncio.to_thread`."""

    @wraps(call)
    async def method(engine: Any, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return await asyncio.to_thread(call, engine, *args, **kwargs)

    return cast(Any, method)


class AsyncEngine(BaseLLM):
    """An engine whose calls are awaited. `AsyncLLM` adds the requests."""

    def _hold(self, engine: Engine) -> None:
        if engine.processes > 1:
            engine.client.shutdown()
            raise UnsupportedFeature(
                "AsyncLLM over several processes is not built yet: their requests would come in "
                "different orders. Use LLM, or a mesh of this process's own devices."
            )
        super()._hold(engine)
        self._requests = AsyncRequests(engine.session)

    # LLM's methods as coroutines; each waits in a thread.
    stats = awaited(OfflineEngine.stats)
    get_metrics = awaited(OfflineEngine.get_metrics)
    reset_prefix_cache = awaited(OfflineEngine.reset_prefix_cache)
    health = awaited(OfflineEngine.health)
    call_workers = awaited(OfflineEngine.call_workers)
    collective_rpc = awaited(OfflineEngine.collective_rpc)
    add_lora = awaited(OfflineEngine.add_lora)
    remove_lora = awaited(OfflineEngine.remove_lora)
    list_loras = awaited(OfflineEngine.list_loras)
    pin_lora = awaited(OfflineEngine.pin_lora)
    wait_until_warm = awaited(OfflineEngine.wait_until_warm)
    save = awaited(OfflineEngine.save)
    reload_weights = awaited(OfflineEngine.reload_weights)
    resize_cache = awaited(OfflineEngine.resize_cache)
    start_profile = awaited(OfflineEngine.start_profile)
    stop_profile = awaited(OfflineEngine.stop_profile)
    write_recording = awaited(OfflineEngine.write_recording)

    async def _ask(self, question: CoreQuestion[A]) -> A:
        return await asyncio.to_thread(self._front.client.ask, question)

    async def update_params(
        self, params: Any, *, mapping: Mapped | None = None, donate: bool = False,
        on_inflight: OnInflight = "finish",
    ) -> int:  # fmt: skip
        """Run other parameters from the next step on; as `LLM.update_params`.

        With "finish", new requests are queued meanwhile and run with the new parameters. While
        generation is paused nothing is waited for: kept requests continue with the new parameters
        at the resume.
        """
        return await asyncio.to_thread(
            parameters.update_params,
            self.engine, params, donate, on_inflight, self._requests.finish_all, mapping,
        )  # fmt: skip

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """Run no more steps until `resume_generation`; returns when the last one has ended.

        Open requests are aborted ("abort"), finished first ("wait"), or kept with their tokens to
        continue at the resume ("keep"). New requests are queued until then, and a request aborted
        meanwhile gets its last output then. `clear_cache` clears the prefix cache; kept requests
        are then recomputed.
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

    async def sleep(
        self,
        level: int = 1,
        mode: PauseMode = "abort",
        *,
        tags: Sequence[str] | None = None,
        new_requests: NewRequests = "keep",
    ) -> None:
        """Pause generation and free memory until `wake_up`; as `LLM.sleep`.

        New requests are queued until the wake-up, or refused, by `new_requests`.
        """
        enabled = self.engine.args.enable_sleep_mode
        order = SleepOrder.checked(enabled, level, mode, tags, new_requests)
        if not self._requests.paused:
            await asyncio.to_thread(self._requests.pause, order.mode, order.refusal)
        await self._ask(order.question)

    async def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Restore sleeping memory, all of it or that of `tags`; as `LLM.wake_up`."""
        awake = await self._ask(waking(tags))
        if awake:
            await self.resume_generation()
        return awake

    async def is_sleeping(self) -> bool:
        """Whether generation is paused or memory sleeps."""
        if self._requests.paused:
            return True
        return await asyncio.to_thread(lambda: self._front.is_asleep)

    async def release_kv_cache_memory(self) -> None:
        """Drop only the KV cache until `wake_up`; as `LLM.release_kv_cache_memory`."""
        await self.sleep(level=1, mode="keep", tags=["kv_cache"])

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = DRAIN_SECONDS
    ) -> None:
        """Add or remove data-parallel replicas, each in a process of its own, while requests run. A
        replica that still has requests after `drain_timeout` seconds stays, and an error is
        raised."""
        await asyncio.to_thread(scale_replicas, self.engine, new_data_parallel_size, drain_timeout)

    async def is_paused(self) -> bool:
        """Whether generation is paused."""
        return self._requests.paused

    async def is_tracing_enabled(self) -> bool:
        """Whether requests are traced: `otlp_traces_endpoint` was given."""
        return self.engine.args.otlp_traces_endpoint is not None

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Return when no request is open; TimeoutError after `drain_timeout` seconds."""
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

    def shutdown(self) -> FinishedCoroutine:
        """Abort every request and free the device memory. Idempotent.

        Completes before it returns; `await engine.shutdown()` works as well.
        """
        if self._front.leave() is not None:
            self._requests.shutdown()
        return FinishedCoroutine()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


class FinishedCoroutine(Coroutine[None, None, None]):
    """A finished coroutine: it can be awaited, made a task or dropped without a warning."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield

    def send(self, _value: None) -> None:
        """Finish."""
        raise StopIteration

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> None:
        """Raise the exception thrown in."""
        raise typ if val is None else val

    def close(self) -> None:
        """Nothing is left to close."""
