"""Protocol of an engine core, whose scheduler may be in another process.

`engine.client` calls it between two steps, in one thread at a time; `read`, `check_alive` and
`health` may be called at any time.
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
        """Whether a request is unfinished, or deltas are undelivered."""
        ...

    @property
    def weights_version(self) -> int:
        """Number of parameter updates so far."""
        ...

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for compilation. Thread-safe."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which a step would find no work, barring calls and wake-ups of parked
        requests; 0 if it may find some, or if `step` waits by itself."""
        ...

    def when_woken(self, tell: Callable[[], object]) -> None:
        """Register a callback for wake-ups of parked requests, called in any thread."""
        ...

    def read(self, wire: WireRequest) -> ReadPrompt | None:
        """Precompute what `add` needs of a prompt (hashes), or None. May run during a step. Raises
        RequestError if the request could never be scheduled."""
        ...

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Queue a request; `prompt` is the result of `read`, if already computed."""
        ...

    def abort(self, request_id: str) -> TokenDelta | None:
        """Abort a request. Returns its last delta; None if a step will return it or it has
        ended."""
        ...

    def step(self) -> list[TokenDelta]:
        """Run the next step. Returns deltas, including final ones."""
        ...

    def run_ahead(self) -> list[TokenDelta]:
        """Queue a step if none is in flight, so that the device works while outputs are
        processed."""
        ...

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        """Resize the KV cache, keeping as much of its contents as fits."""
        ...

    def drain(self) -> list[TokenDelta]:
        """Read all steps in flight."""
        ...

    def update_weights(self, values: Any) -> int:
        """Swap parameters before the next step. Returns the new weights version."""
        ...

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache. Returns False if requests are using the cache.

        With `reset_running_requests` they are preempted first and recomputed.
        """
        ...

    def counts(self) -> Counts: ...

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Call a method in every worker process. Returns encoded results by rank."""
        ...

    def health(self) -> list[WorkerHealth]:
        """Health of every worker process, as far as known."""
        ...

    def probe(self) -> None:
        """Run an empty step to completion; only while no request runs."""
        ...

    def check_alive(self) -> None: ...

    def shutdown(self) -> None:
        """Abort everything and free device memory."""
        ...
