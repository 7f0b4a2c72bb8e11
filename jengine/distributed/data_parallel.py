"""A core of several replicas: places each request in one of them and steps them all together.

In: requests. Out: token deltas, whichever replica they are from. Every replica is an EngineCore
with a scheduler, a cache and devices of its own. Must not know devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jengine.distributed.router import Placed, Router
from jengine.engine.core import EngineCore
from jengine.errors import EngineDead, RequestError
from jengine.executor.protocol import PendingOutput, WorkerHealth
from jengine.outputs import Counts, TokenDelta
from jengine.request import Request, WireRequest

# Seconds between two looks at steps that run. Each replica has its next step queued meanwhile.
GLANCE = 1e-4


def not_ready(steps: Mapping[int, PendingOutput]) -> set[int]:
    """The replicas whose step still runs."""
    return {index for index, step in steps.items() if not step.ready}


class DataParallelCore:
    """Several engine cores as one. They compute at the same time, or, with depth 0, in turn."""

    def __init__(
        self,
        replicas: Sequence[EngineCore],
        names: Sequence[str],
        split: Callable[[Any], Sequence[Any]],
        in_turn: bool,
    ) -> None:
        self.replicas = replicas
        self.names = names  # for errors
        self.split = split  # parameters -> those of each replica
        self.in_turn = in_turn
        block_size = replicas[0].scheduler.cache.block_size
        self.router = Router(len(replicas), block_size)
        self.undelivered: list[TokenDelta] = []  # what was read in a step that was then interrupted
        self.failure: BaseException | None = None

    @property
    def has_work(self) -> bool:
        """Whether some request still waits for its final answer."""
        return bool(self.undelivered) or any(replica.has_work for replica in self.replicas)

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced; the same in every replica."""
        return self.replicas[0].weights_version

    def add(self, wire: WireRequest) -> None:
        """Queue a request where its beginning is cached already, or where there is least to do."""
        self.check_alive()
        if wire.request_id in self.router:
            raise RequestError(f"request_id={wire.request_id!r} is being answered already.")
        # Every cache names the same content alike, so the hashes are made once.
        length = len(wire.prompt_token_ids)
        request = Request(wire, length, 0)
        found = [one.scheduler.cache.find_prefix(request) for one in self.replicas]
        chosen = self.router.replica_for(found, request.block_hashes)
        self.replicas[chosen].add(wire, request.block_hashes)
        self.router.enter(wire.request_id, Placed(chosen, length, request.block_hashes))

    def abort(self, request_id: str) -> TokenDelta | None:
        """End a request; its final delta, or None if it has ended already."""
        replica = self.router.replica_of(request_id)
        delta = None if replica is None else self.replicas[replica].abort(request_id)
        if delta is not None:
            self.router.note(delta)
        return delta

    def step(self) -> list[TokenDelta]:
        """One step of every replica that has something to do."""
        self.check_alive()
        everyone = range(len(self.replicas))
        for together in [[index] for index in everyone] if self.in_turn else [everyone]:
            self._step(together)
        told, self.undelivered = self.undelivered, []
        for delta in told:
            self.router.note(delta)
        return told

    def _step(self, together: Sequence[int]) -> None:
        """Queue a step in each of these replicas, and only then read those that have run."""
        queued = {}
        for index in together:
            with self._naming(index):
                queued[index] = self.replicas[index].queue()
        running = self._still_running(queued)
        for index in together:
            if index not in running:
                with self._naming(index):
                    self.undelivered += self.replicas[index].read(queued[index])

    def _still_running(self, queued: Mapping[int, bool]) -> set[int]:
        """The replicas not to wait for now: one that reads a long prompt must not hold up others.

        If nothing was queued, somebody has run at the end.
        """
        due = {index: self.replicas[index].due(new) for index, new in queued.items()}
        steps = {index: step for index, step in due.items() if step is not None}
        idle = not any(queued.values())
        if self.in_turn or (idle and len(steps) == 1):
            return set()
        while idle and steps and len(not_ready(steps)) == len(steps):
            time.sleep(GLANCE)
        return not_ready(steps)

    @contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """A replica that fails ends the engine, and the error says which it was."""
        try:
            yield
        except EngineDead as error:
            self.failure = EngineDead(f"{self.names[index]}: {error}")
            raise self.failure from error

    def update_weights(self, leaves: Any) -> int:
        """Use other parameters in every replica from the next step on, or in none."""
        self.check_alive()
        parts = self.split(leaves)
        for index, (replica, part) in enumerate(zip(self.replicas, parts, strict=True)):
            with self._naming(index):
                replica.update_weights(part)
        return self.weights_version

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes. False, and nothing is forgotten, if requests use any of them."""
        if any(replica.counts().cache_usage for replica in self.replicas):
            return False
        for replica in self.replicas:
            replica.reset_prefix_cache()
        return True

    def counts(self) -> Counts:
        """What the schedulers are doing, together and one by one."""
        each = tuple(replica.counts() for replica in self.replicas)
        return Counts(
            running=sum(one.running for one in each),
            waiting=sum(one.waiting for one in each),
            preemptions=sum(one.preemptions for one in each),
            cache_usage=sum(one.cache_usage for one in each) / len(each),
            prefix_queries=sum(one.prefix_queries for one in each),
            prefix_hits=sum(one.prefix_hits for one in each),
            replicas=each,
        )

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """What a call returns in this one process: of the first replica."""
        self.check_alive()
        return self.replicas[0].call_workers(method, arguments)

    def health(self) -> list[WorkerHealth]:
        """This one process."""
        self.check_alive()
        return self.replicas[0].health()

    def probe(self) -> None:
        """Run a step with nothing in it in every replica. Only while no request runs."""
        self.check_alive()
        for index, replica in enumerate(self.replicas):
            with self._naming(index):
                replica.probe()

    def check_alive(self) -> None:
        """Raise EngineDead if a replica has failed before."""
        if self.failure is not None:
            raise EngineDead("this engine has stopped; create a new one.") from self.failure

    def shutdown(self) -> None:
        """Abort everything and give the device memory back."""
        self.undelivered.clear()
        self.router.clear()
        for replica in self.replicas:
            replica.shutdown()
        self.failure = self.failure or EngineDead("this engine was shut down.")
