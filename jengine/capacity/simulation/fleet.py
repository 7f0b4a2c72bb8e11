"""The event loop: arrivals, steps that end, copies that arrive and replicas that fail, in order.

In: pools and a trace. Out: a History. Must not know how long a step takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from jengine.capacity.simulation.history import History
from jengine.capacity.simulation.journeys import Journey, noted, wire_of
from jengine.capacity.simulation.replica import NEVER, Clock, Incoming, Replica
from jengine.capacity.simulation.replica_pool import ReplicaPool
from jengine.capacity.simulation.trace import Arrival, SimulatedRequest, Trace, next_turn
from jengine.errors import RequestError
from jengine.request import Request, WireRequest
from jengine.scheduler.refusal import refuse_impossible


class Fleet:
    """Replica pools that each request passes in order: one pool, or prefill then decode, joined by
    links of limited bandwidth."""

    def __init__(
        self, pools: Sequence[ReplicaPool], clock: Clock, trace: Trace, link: float = 1.0
    ) -> None:  # fmt: skip
        self.pools = pools
        self.clock = clock
        self.trace = trace
        self.link = link
        self.history = History()
        self.open: dict[str, Journey] = {}
        self.sites: list[tuple[ReplicaPool, Replica]] = [
            (pool, replica) for pool in pools for replica in pool.replicas
        ]
        self._outside: list[tuple[float, int, Callable[[], None]]] = []
        self._wakes: list[tuple[float, int]] = []
        self._woken = [NEVER] * len(self.sites)  # the wake that is in the heap
        self.due = 0  # arrivals that are known and have not happened
        self._number = 0
        self._stranded: list[Journey] = []  # no replica of their pool lives
        self._longest = min(pool.replicas[0].kind.schedule.max_model_len for pool in pools)
        for _, replica in self.sites:
            replica.horizon = self._horizon

    def run(self) -> History:
        """Run the event loop until every request has ended."""
        self._await_arrival(self.trace.arrivals())
        while self._outside or self._wakes:
            if self._outside and (not self._wakes or self._outside[0][0] <= self._wakes[0][0]):
                self.clock.now, _, happen = heapq.heappop(self._outside)
                happen()
            else:
                at, site = heapq.heappop(self._wakes)
                if self._woken[site] == at:
                    self._woken[site] = NEVER
                    self.clock.now = at
                    self._wake(site)
        self.history.unanswered = len(self.open)
        return self.history

    def at(self, when: float, happen: Callable[[], None]) -> None:
        """Schedule an event at a virtual time."""
        self._number += 1
        heapq.heappush(self._outside, (when, self._number, happen))

    def fail(self, stage: int, index: int) -> None:
        """Kill a replica: its requests are rerouted and recomputed behind the tokens they have."""
        pool = self.pools[stage]
        pool.dead.add(index)
        self.history.failures += 1
        site = self._first_site(stage) + index
        pool.replicas[index].start()
        self._woken[site] = NEVER
        for journey in [one for one in self.open.values() if site in (one.site, one.source)]:
            self.pools[journey.stage].lose(journey.name)
            self.history.rerun += 1
            journey.stage, journey.source = 0, -1
            self._place(journey)

    def come_back(self, stage: int, index: int) -> None:
        """Restart a failed replica with an empty cache."""
        self.pools[stage].dead.discard(index)
        waiting, self._stranded = self._stranded, []
        for journey in waiting:
            self._place(journey)

    def _await_arrival(self, arrivals: Iterator[Arrival]) -> None:
        """Schedule the trace's next arrival, which schedules the one after it."""
        arrival = next(arrivals, None)
        if arrival is not None:
            when, ask = arrival

            def happen() -> None:
                self._await_arrival(arrivals)
                self._arrive(ask)

            self._arrive_at(when, happen)

    def _arrive_at(self, when: float, happen: Callable[[], None]) -> None:
        self.due += 1
        self.at(when, happen)

    def _horizon(self, waiting: bool) -> float:
        """Earliest time at which a replica, or the router's view of it, may be needed."""
        first = self._outside[0][0] if self._outside else NEVER
        if (self.trace.has_turns or len(self.pools) > 1) and self._wakes:
            return min(first, self._wakes[0][0])
        return first

    def _arrive(self, ask: SimulatedRequest) -> None:
        self.due -= 1
        self._number += 1
        journey = Journey(f"{ask.name}-{self._number}", ask, self.clock.now)
        wire = wire_of(journey, is_last=True)
        try:
            for pool in self.pools:
                replica = pool.replicas[0]
                refuse_impossible(wire, replica.kind.schedule, replica.cache)
        except RequestError:
            self.history.refused += 1
            return
        self.open[journey.name] = journey
        self._place(journey)

    def _first_site(self, stage: int) -> int:
        return sum(len(pool.replicas) for pool in self.pools[:stage])

    def _place(self, journey: Journey) -> None:
        """Route a request to a replica of its stage, with the tokens generated so far."""
        journey.attempt += 1
        pool = self.pools[journey.stage]
        if not pool.living:
            journey.site, journey.stage = -1, 0
            self._stranded.append(journey)
            return
        wire = wire_of(journey, is_last=journey.stage == len(self.pools) - 1)
        choice = pool.place(wire)
        replica, source = pool.replicas[choice.replica], journey.site
        journey.site = self._first_site(journey.stage) + choice.replica
        if journey.stage:
            tokens = len(wire.prompt_token_ids) - 1
            self._move(journey, source, Incoming(wire, choice.hashes, tokens))
        elif tokens := self._fetchable(wire, choice.hashes, replica):
            self._fetch(journey, tokens[0], Incoming(wire, choice.hashes, sum(tokens)))
        else:
            replica.add(wire, choice.hashes)
            self._wake_idle(journey.site)

    def _move(self, journey: Journey, source: int, incoming: Incoming) -> None:
        """Transfer a request's KV from the replica that computed it."""
        size = incoming.tokens * self.sites[journey.site][1].kind.token_bytes
        self.history.moved_bytes += size
        journey.source = source
        self._take_in_at(self.sites[source][1].copy_ends(size, self.link), journey, incoming)

    def _fetchable(
        self, wire: WireRequest, hashes: Sequence[bytes], replica: Replica
    ) -> tuple[int, int] | None:
        """Prompt tokens cached on the device, and those behind them in host memory."""
        if replica.tier is None:
            return None
        request = Request(wire, len(wire.prompt_token_ids) + 1, 0)
        request.block_hashes = list(hashes)
        found = replica.cache.find_prefix(request)
        more = replica.tier.beyond(request, found)
        return (found, more) if more else None

    def _fetch(self, journey: Journey, found: int, incoming: Incoming) -> None:
        """Transfer KV from host memory."""
        kind = self.sites[journey.site][1].kind
        size = (incoming.tokens - found) * kind.token_bytes
        self.history.fetched_bytes += size
        when = self.sites[journey.site][1].copy_ends(size, kind.copy_rate)
        self._take_in_at(when, journey, incoming)

    def _take_in_at(self, when: float, journey: Journey, incoming: Incoming) -> None:
        """Deliver a request when its transfer completes, unless a replica fails before."""
        attempt = journey.attempt

        def happen() -> None:
            if journey.attempt == attempt:
                journey.source = -1
                self.sites[journey.site][1].take_in(incoming)
                self._wake_idle(journey.site)

        self.at(when, happen)

    def _wake_idle(self, site: int) -> None:
        """A replica whose next wake is planned already sees a new request then."""
        if self._woken[site] == NEVER:
            self._wake(site)

    def _wake(self, site: int) -> None:
        pool, replica = self.sites[site]
        deltas, ends = replica.read()
        for journey in noted(deltas, ends, self.open, self.history.gaps, pool.tell):
            self._leave(journey)
        replica.queue()  # only now, since a jump looks at what the answers have caused
        at = replica.wakes_at
        if at < self._woken[site]:
            self._woken[site] = at
            heapq.heappush(self._wakes, (at, site))

    def _leave(self, journey: Journey) -> None:
        """The request has all tokens of its stage."""
        if len(journey.answer) < journey.ask.answer:
            journey.stage += 1
            self._place(journey)
            return
        del self.open[journey.name]
        self.history.end(
            journey.arrived, journey.first, journey.last, len(journey.ask.prompt),
            journey.cached, len(journey.answer),
        )  # fmt: skip
        arrival = next_turn(journey.ask, journey.answer, journey.last, self._longest)
        if arrival is not None:
            when, ask = arrival
            self._arrive_at(when, partial(self._arrive, ask))
