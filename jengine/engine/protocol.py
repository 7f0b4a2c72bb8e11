"""What a client needs of an engine core, in whichever process the requests are scheduled."""

from __future__ import annotations

from typing import Any, Protocol

from jengine.executor.protocol import WorkerHealth
from jengine.outputs import Counts, TokenDelta
from jengine.request import WireRequest


class Core(Protocol):
    """Requests in, token deltas out, one step at a time."""

    @property
    def has_work(self) -> bool:
        """Whether some request still waits for its final answer."""
        ...

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        ...

    def check(self, wire: WireRequest) -> None:
        """Raise a RequestError if no schedule could ever answer a request.

        Changes nothing and may be called while a step runs.
        """
        ...

    def add(self, wire: WireRequest) -> None:
        """Queue a request."""
        ...

    def abort(self, request_id: str) -> TokenDelta | None:
        """End a request. Its final delta, or None: a step returns it, or it has ended already."""
        ...

    def step(self) -> list[TokenDelta]:
        """What the next step brings the requests."""
        ...

    def update_weights(self, leaves: Any) -> int:
        """Use other parameters from the next step on. Returns the new version of the weights."""
        ...

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False if requests are using the cache.

        With `reset_running_requests` none do: those that run give up their blocks and are computed
        again, from the tokens that they have.
        """
        ...

    def counts(self) -> Counts:
        """What the scheduler is doing."""
        ...

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """What a call returns in every process that runs steps, by rank."""
        ...

    def health(self) -> list[WorkerHealth]:
        """What is known of every process that runs steps."""
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
