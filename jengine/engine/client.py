"""How a front reaches an engine core: the protocol; `in_process` is for a core in this process.

Only plain data passes: requests and deltas as structs, calls as bytes. So the core may as well be
in another process. Replacing parameters and taps need live arrays and exist in process only.
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
        """Whether `outputs` has something to wait for."""
        ...

    def add(self, wire: WireRequest) -> None:
        """Queue a request. Raises a RequestError if no schedule could ever answer it."""
        ...

    def abort(self, request_id: str) -> None:
        """Queue the end of a request; unless it has ended by then, a last delta says "abort".

        Safe at any moment, also in a finalizer that the garbage collector runs inside a step.
        """
        ...

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Wait for the next step and return what it brought. One thread at a time calls it.

        With `wait=False`, only what steps brought before and was not returned yet.
        """
        ...

    def ask(self, question: CoreQuestion[A]) -> A:
        """The answer to one of `engine.questions`."""
        ...

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced, without a wait; `stats` has it too."""
        ...

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for a program that is being compiled, as far as known."""
        ...

    def state(self) -> CoreState:
        """What the core is doing, as it said a moment ago. Never waits, whatever it is doing."""
        ...

    def dump_stacks(self) -> None:
        """Have every other process that it started write its threads' stacks to stderr."""
        ...

    def when_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Have a function called when the engine dies while no thread waits for `outputs`."""
        ...

    def check_alive(self) -> None:
        """Raise EngineDead if the engine has stopped or belongs to another process."""
        ...

    def shutdown(self) -> None:
        """Abort everything and give the device memory back. Twice is harmless."""
        ...
