"""Protocol by which a front reaches an engine core; `in_process` implements it in this process.

Only plain data passes (requests and deltas as structs, calls as bytes), so the core may be in
another process. Replacing parameters and taps need live arrays and exist in process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from jengine.engine.core_state import CoreState
from jengine.engine.questions import CoreQuestion
from jengine.errors import EngineDead
from jengine.outputs import TokenDelta
from jengine.request import WireRequest

A = TypeVar("A")


class EngineClient(Protocol):
    """Requests and aborts in, token deltas out. Every method may be called from any thread."""

    @property
    def has_work(self) -> bool:
        """Whether `outputs` has something to return or wait for."""
        ...

    def add(self, wire: WireRequest) -> None:
        """Queue a request. Raises RequestError if it could never be scheduled."""
        ...

    def abort(self, request_id: str) -> None:
        """Queue an abort; unless the request has ended by then, its last delta has finish_reason
        "abort".

        Reentrant: safe in a finalizer that the garbage collector runs inside a step.
        """
        ...

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Wait for the next step and return its deltas; one thread at a time. With `wait=False`,
        return only deltas that are ready."""
        ...

    def ask(self, question: CoreQuestion[A]) -> A:
        """Ask one of `engine.questions` and wait for the answer."""
        ...

    @property
    def weights_version(self) -> int:
        """Number of parameter updates so far; never waits. Also in `stats`."""
        ...

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for compilation, as far as known."""
        ...

    def state(self) -> CoreState:
        """Latest known state of the core; never waits."""
        ...

    def dump_stacks(self) -> None:
        """Have every child process write its threads' stacks to stderr."""
        ...

    def when_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Register a callback for an engine that dies while no thread waits in `outputs`."""
        ...

    def check_alive(self) -> None:
        """Raise EngineDead if the engine has stopped or belongs to another process."""
        ...

    def shutdown(self) -> None:
        """Abort everything and free device memory. Idempotent."""
        ...
