"""How a front reaches an engine core: the protocol; `in_process` is for a core in this process.

Only plain data passes: requests and deltas as structs, calls as bytes. So the core may as well be
in another process. Replacing parameters and taps need live arrays and exist in process only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from jengine.counts import Counts
from jengine.engine.core_state import CoreState
from jengine.errors import EngineDead
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import TokenDelta
from jengine.request import WireRequest

T = TypeVar("T")
# Seconds between two looks at the core's counts while steps run.
COUNT_EVERY = 0.1


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

    def settle(self) -> None:
        """Return when everything queued so far has reached the scheduler."""
        ...

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced, without a wait; `stats` has it too."""
        ...

    def stats(self) -> Counts:
        """Numbers of running and waiting requests, and of the cache."""
        ...

    def call(self, method: str, arguments: bytes) -> list[bytes]:
        """The result of a call in every process that runs steps, by rank; see `executor.calls`."""
        ...

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False if requests are using the cache."""
        ...

    def health(self) -> list[WorkerHealth]:
        """The health of every process that runs steps, as far as known."""
        ...

    def probe(self) -> None:
        """Run a step with nothing in it, to its end. Only while no request runs."""
        ...

    def sleep(self, level: int, tags: Sequence[str]) -> None:
        """Free the memory of what the tags name; 1 keeps parameters on the host, 2 drops them.

        Steps in flight end first, and running requests start anew when all is awake. Steps must be
        paused, and stay so until then.
        """
        ...

    def wake_up(self, tags: Sequence[str]) -> bool:
        """Bring back what the tags name. Whether nothing sleeps any more."""
        ...

    @property
    def is_asleep(self) -> bool:
        """Whether some of the engine's memory sleeps."""
        ...

    def reload_weights(self) -> None:
        """Read the parameters from the model's folder again; running requests start anew."""
        ...

    def pause(self) -> None:
        """Run no more steps until `resume`; returns when the last one has ended."""
        ...

    def resume(self) -> None:
        """Run steps again. Raises EngineAsleep if memory sleeps."""
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
