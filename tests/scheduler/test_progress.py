"""No livelock: whatever arrives or is aborted, the scheduler moves on within a few steps.

The clock is virtual: a tick is one turn of the engine's loop. Requests arrive while others run, in
caches so small that they push each other out.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jengine.errors import RequestError
from jengine.request import WireRequest
from tests.scheduler.scheduler_loop import Loop, make_wire, truth

QUICK = settings(derandomize=True, deadline=None, max_examples=25, stateful_step_count=40)
LARGE = settings(derandomize=True, deadline=None, max_examples=1500, stateful_step_count=120)
MAX_MODEL_LEN = 32
BLOCK_SIZE = 2
MOST_DEPTH = 2


class ProgressMachine(RuleBasedStateMachine):
    """Arrivals, aborts and ticks. What must hold after each tick is in `ticked`."""

    loop: Loop | None = None

    @initialize(
        depth=st.integers(0, MOST_DEPTH),
        spare=st.integers(0, 10),
        rows=st.integers(1, 6),
        budget=st.sampled_from([4, 8, 16]),
        policy=st.sampled_from(["fcfs", "priority"]),
        spacing=st.sampled_from([1, 1, 2]),
    )
    def start(self, depth, spare, rows, budget, policy, spacing):
        self.loop = Loop(
            depth=depth,
            blocks=MAX_MODEL_LEN // BLOCK_SIZE + 2 + spare,
            block_size=BLOCK_SIZE,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            policy=policy,
            spacing=spacing,
        )
        # The longest a sequence may take to be computed again, and to come back.
        self.patience = MAX_MODEL_LEN // budget + (depth + 2) * spacing + 2
        self.wires: dict[str, WireRequest] = {}
        self.quiet = 0  # ticks since a token was delivered or a request ended

    @rule(
        length=st.integers(1, MAX_MODEL_LEN - 1),
        max_tokens=st.integers(1, MAX_MODEL_LEN),
        priority=st.integers(0, 2),
        count=st.integers(1, 3),
    )
    def arrive(self, length, max_tokens, priority, count):
        for _ in range(count):
            name = str(len(self.wires) + 1)
            wire = make_wire(length, name, max_tokens=max_tokens, priority=priority)
            try:
                self.loop.add(wire)
            except RequestError:
                return
            self.wires[name] = wire

    @precondition(lambda self: self.loop and len(self.loop.finals) < len(self.wires))
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(set(self.wires) - set(self.loop.finals))))
        self.loop.abort(name)
        self.quiet = 0

    @rule(count=st.integers(1, 8))
    def tick(self, count):
        for _ in range(count):
            before = len(self.loop.deltas)
            self.loop.step()
            moved = len(self.loop.deltas) > before or not self.loop.scheduler.has_unfinished
            self.quiet = 0 if moved else self.quiet + 1
            assert self.quiet <= self.patience, "steps run, and nothing comes of them"

    @invariant()
    def preemptions_are_bounded(self):
        """A request is pushed out at most once for each block that another one gains."""
        if self.loop is None:
            return
        most = MAX_MODEL_LEN // BLOCK_SIZE * len(self.wires)
        for request in self.loop.scheduler._requests.open.values():
            assert request.num_preemptions <= most

    def teardown(self):
        if self.loop is None:
            return
        while self.loop.scheduler.has_unfinished or self.loop.in_flight:
            self.tick(1)
        assert self.loop.cache.usage == 0
        for name, wire in self.wires.items():
            if self.loop.finals[name].finish_reason != "abort":
                assert self.loop.tokens[name] == truth(wire, MAX_MODEL_LEN)[0]


TestProgress = ProgressMachine.TestCase
TestProgress.settings = QUICK


@pytest.mark.slow
class TestProgressLarge(ProgressMachine.TestCase):
    settings = LARGE


@pytest.mark.parametrize("depth", [0, 1])
def test_the_first_to_come_is_never_starved_by_those_that_keep_coming(depth: int) -> None:
    """A new request arrives with every step, each larger than what is free."""
    loop = Loop(depth=depth, blocks=20, block_size=2, max_num_seqs=4, max_model_len=32)
    first = make_wire(10, "first", max_tokens=20)
    loop.add(first)
    steps = 0
    while "first" not in loop.finals:
        steps += 1
        assert steps <= 20 + 4, "a step for each token, and the first chunk"
        loop.add(make_wire(16, f"r{steps}", max_tokens=12))
        loop.step()
    loop.assert_truth(first)
