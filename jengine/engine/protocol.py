"""The methods of an engine core, in whichever process its requests are scheduled.

`engine.client` calls them between two steps, one thread at a time. `check`, `read`, `check_alive`
and `health` may be called at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from jengine.counts import Counts
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import TokenDelta
from jengine.request import ReadPrompt, WireRequest


class Core(Protocol):
    """Requests in, token deltas out, one step per call."""

    @property
    def has_work(self) -> bool:
        """Whether some request still waits for its final answer."""
        ...

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        ...

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for a program that is being compiled here. Any thread may ask."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which a step would find nothing to do, unless something is called here or a
        parked request is woken; 0: it may find something, or waits by itself."""
        ...

    def when_woken(self, tell: Callable[[], object]) -> None:
        """Have this called, in any thread, when parked requests are woken."""
        ...

    def check(self, wire: WireRequest) -> None:
        """Raise a RequestError if no schedule could ever answer a request.

        Changes nothing and may be called while a step runs.
        """
        ...

    def read(self, wire: WireRequest) -> ReadPrompt | None:
        """What `add` takes of a prompt, made by the thread that brings it; None: nothing is needed
        here. May be called while a step runs."""
        ...

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Queue a request, whose prompt may have been read before."""
        ...

    def abort(self, request_id: str) -> TokenDelta | None:
        """End a request. Returns its last delta; None if a step returns it, or it has ended."""
        ...

    def step(self) -> list[TokenDelta]:
        """Run the next step. Returns the new tokens and ends of requests that it leads to."""
        ...

    def run_ahead(self) -> list[TokenDelta]:
        """Queue a step if none is in flight, so that the device works while tokens are read."""
        ...

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        """Have a KV cache of so many bytes, with as much of its contents as fits."""
        ...

    def drain(self) -> list[TokenDelta]:
        """Read every step in flight, so that nothing runs any more."""
        ...

    def update_weights(self, values: Any) -> int:
        """Use other parameters from the next step on. Returns the new version of the weights."""
        ...

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False if requests are using the cache.

        With `reset_running_requests` running requests are preempted first: they give up their
        blocks and are computed again from the tokens known so far.
        """
        ...

    def counts(self) -> Counts:
        """Numbers of running and waiting requests, and of the cache."""
        ...

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """The result of a call in every process that runs steps, by rank."""
        ...

    def health(self) -> list[WorkerHealth]:
        """The health of every process that runs steps, as far as known."""
        ...

    def probe(self) -> None:
        """Run a step with nothing in it, to its end. Only while no request runs."""
        ...

    def check_alive(self) -> None:
        """Raise EngineDead if the engine has stopped."""
        ...

    def shutdown(self) -> None:
        """Abort everything and give the device memory back."""
        ...
