"""Random arrivals, aborts, preemptions and failures of fetches, with a small cache on the device,
and memory beside it: whatever is evicted, saved, loaded or lost, each answer is the truth.

The executor asserts that every row reads back its own text, and the loop that blocks and slots add
up after every operation: free + used + pinned + cached = total.
"""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jengine.errors import RequestError
from jengine.executor.multihost.executors import FetchTally
from jengine.plan import Fetch, Transfers
from jengine.request import WireRequest
from jengine.scheduler.tiered_transfers import TieredTransfers
from tests.executor.scripted_transfers import ScriptedTransfers
from tests.kvcache.cache_cases import FULL, recurrent, sliding
from tests.scheduler.scheduler_loop import Loop, make_wire
from tests.scheduler.staged_executor import StagedExecutor

QUICK = settings(derandomize=True, deadline=None, max_examples=20, stateful_step_count=40)
LARGE = settings(derandomize=True, deadline=None, max_examples=1500, stateful_step_count=100)
GROUPS = [
    (FULL,), (FULL,), (sliding(3),), (FULL, sliding(3)), (recurrent(4),), (FULL, recurrent(4)),
]  # fmt: skip


class FarAway:
    """What a connector's scheduler half knows of what executors have stored, and what it doubts."""

    def __init__(self, stored: dict, *, boasts: bool) -> None:
        self.stored = stored
        self.boasts = boasts  # says that it has what it has not
        self.gone: set[bytes] = set()

    def source(self, wire: WireRequest) -> str | None:
        return None if wire.request_id.endswith("7") else ""

    def holds(self, key: bytes, source: str) -> bool:
        return key not in self.gone and (self.boasts or key in self.stored)

    def lost(self, key: bytes, source: str) -> None:
        self.gone.add(key)

    def forget(self, key: bytes) -> None:
        self.gone.add(key)

    def finished(self, wire: WireRequest, num_tokens: int) -> dict:
        return {"tokens": num_tokens}

    def reset(self) -> None:
        self.stored.clear()


class TransfersMachine(RuleBasedStateMachine):
    """Adds, aborts, preempts, schedules and commits; fetches arrive, fail or take their time."""

    loop: Loop | None = None
    stages = (1,)  # of pipelines, each a scripted executor with a cache of its own
    copies = ScriptedTransfers

    @initialize(
        groups=st.sampled_from(GROUPS),
        depth=st.integers(0, 2),
        block_size=st.sampled_from([1, 2, 4]),
        spare=st.integers(0, 6),
        slots=st.sampled_from([0, 1, 5, 40]),
        most_loads=st.sampled_from([1, 2, 64]),
        far=st.sampled_from([None, None, False, True]),
        prompt_tokens=st.sampled_from([4, 8]),
        stages=st.runner().flatmap(lambda self: st.sampled_from(self.stages)),
    )
    def start(
        self, groups, depth, block_size, spare, slots, most_loads, far, prompt_tokens, stages
    ):
        stored: dict = {}
        self.connector = None if far is None else FarAway(stored, boasts=far)
        self.loop = Loop(
            *groups,
            depth=depth + stages - 1,
            spacing=stages,
            blocks=16 // block_size + 2 + spare,
            block_size=block_size,
            max_num_seqs=4,
            max_num_batched_tokens=prompt_tokens,
            max_model_len=32,
            transfers=lambda cache: TieredTransfers(
                cache, [slots] * len(groups), most_loads, self.connector
            ),
        )
        executor = self.loop.executor
        if stages > 1:
            self.loop.executor = StagedExecutor(executor, stages, stored, self.arrives)
        else:
            executor.transfers = self.copies(
                executor.cache, executor._cache.cached, executor._states, stored, self.arrives
            )
        self.outcome: bool | None = True
        self.wires: dict[str, WireRequest] = {}
        self.num_added = 0

    def arrives(self, fetch: Fetch) -> bool | None:
        return self.outcome

    @rule(
        prompt=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=3),
        length=st.integers(1, 14),
        max_tokens=st.integers(1, 12),
        reads=st.sampled_from([True, True, True, False]),
    )
    def add(self, prompt, length, max_tokens, reads):
        self.num_added += 1
        wire = make_wire(
            (prompt * length)[:length], str(self.num_added), max_tokens=max_tokens,
            skip_reading_prefix_cache=not reads,
        )  # fmt: skip
        try:
            self.loop.add(wire)
        except RequestError:
            return
        self.wires[wire.request_id] = wire

    @rule(outcome=st.sampled_from([True, False, None]))
    def fetches_now(self, outcome):
        self.outcome = outcome

    @precondition(lambda self: self.wires)
    @rule(data=st.data())
    def abort(self, data):
        self.loop.abort(data.draw(st.sampled_from(sorted(self.wires))))

    @precondition(lambda self: len(self.loop.in_flight) <= self.loop.depth)
    @rule()
    def schedule(self):
        self.loop.schedule()

    @precondition(lambda self: self.loop.in_flight)
    @rule()
    def commit(self):
        self.loop.commit()

    @rule(steps=st.integers(1, 6))
    def run(self, steps):
        for _ in range(steps):
            self.loop.step()

    @rule()
    def preempt_all(self):
        self.loop.scheduler.preempt_all()

    @rule(preempt=st.booleans())
    def reset_prefix_cache(self, preempt):
        self.loop.scheduler.reset_prefix_cache(reset_running_requests=preempt)

    @rule(version=st.integers(0, 2))
    def change_weights(self, version):
        self.loop.scheduler.set_weights_version(version)

    @rule()
    def fail(self):
        """As after an error in a step: nothing that was planned counts."""
        for delta in self.loop.scheduler.reset():
            self.loop.take(delta)
        self.loop.in_flight.clear()
        self.loop.scheduler.reset_prefix_cache()
        self.loop.check()
        assert all(group.num_free == group.num_units for group in self.loop.cache.groups)

    @invariant()
    def counts_add_up(self):
        if self.loop is not None:
            self.loop.check()

    def teardown(self):
        if self.loop is None:
            return
        if self.outcome is None:
            self.outcome = False
        self.loop.drain(steps=200 + 100 * len(self.wires))
        ended = [w for n, w in self.wires.items() if self.loop.finals[n].finish_reason != "abort"]
        self.loop.assert_truth(*ended)
        for _ in range(4):
            self.loop.step()
        assert not self.loop.in_flight and not self.loop.transfers.num_loading
        assert all(group.num_free == group.num_units for group in self.loop.cache.groups), (
            "blocks stay pinned"
        )


class StagedTransfersMachine(TransfersMachine):
    """In pipelines, where a plan writes the blocks of a stage when later plans are under way."""

    stages = (2, 2, 3)


class TalliedTransfers(ScriptedTransfers):
    """Copies of the first of several processes, which hears late which fetches have ended in the
    others."""

    RANKS = 3

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.tally = FetchTally(range(self.RANKS))
        self.others: list[list[Fetch]] = [[] for _ in range(1, self.RANKS)]
        self.sent: list[dict[int, bool]] = [{} for _ in range(1, self.RANKS)]
        self.turn = 0

    def before(self, transfers: Transfers | None) -> dict[int, bool]:
        if transfers is not None:
            self.tally.began(transfers)
        self.tally.ended(0, super().before(transfers))
        for rank, (fetching, sent) in enumerate(zip(self.others, self.sent, strict=True), 1):
            self.tally.ended(rank, sent)  # of the plan before: perhaps from before a reset
            sent.clear()
            if transfers is not None and transfers.reset:
                fetching.clear()
            for fetch in list(fetching):
                self.turn += 1
                outcome = None if self.turn % 3 == 0 else self._arrives(fetch)
                if outcome is not None:
                    sent[fetch.number] = outcome and self.turn % 5 != 0
                    fetching.remove(fetch)
        return self.tally.take()

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        super().fetch(fetches)
        for fetching in self.others:
            fetching += fetches


class TalliedTransfersMachine(TransfersMachine):
    """In several processes, each of which fetches a piece: some late, some in vain."""

    copies = TalliedTransfers


TestTransfers = TransfersMachine.TestCase
TestTransfers.settings = QUICK
TestTalliedTransfers = TalliedTransfersMachine.TestCase
TestTalliedTransfers.settings = QUICK
TestStagedTransfers = StagedTransfersMachine.TestCase
TestStagedTransfers.settings = QUICK


@pytest.mark.slow
class TestTransfersLarge(TransfersMachine.TestCase):
    settings = LARGE


@pytest.mark.slow
class TestTalliedTransfersLarge(TalliedTransfersMachine.TestCase):
    settings = LARGE


@pytest.mark.slow
class TestStagedTransfersLarge(StagedTransfersMachine.TestCase):
    settings = LARGE
