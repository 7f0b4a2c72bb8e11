"""Random arrivals, aborts, gates and steps; whatever the schedule, each answer is the truth.

The executor asserts that every plan is complete and that every row reads back its own text, and the
loop that blocks add up after every operation. A break of either fails the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jengine.errors import RequestError
from jengine.plan import RowSampling
from jengine.request import Request, WireRequest
from jengine.scheduler.queue import Polled
from tests.kvcache.cache_cases import FULL, chunked, recurrent, sliding
from tests.scheduler.scheduler_loop import Loop, TruthProposer, make_wire, truth

QUICK = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=50)
LARGE = settings(derandomize=True, deadline=None, max_examples=2500, stateful_step_count=100)
MAX_MODEL_LEN = 32
BREAKING = 5  # token id after which a text of odd length has no finite logits
WINDOWS = [
    (FULL,), (FULL,), (sliding(3),), (FULL, sliding(3)), (sliding(6), FULL, sliding(1)),
    (recurrent(4),), (FULL, recurrent(4)), (sliding(3), recurrent(8)), (recurrent(None), FULL),
    (FULL, chunked(8)), (chunked(4),),
]  # fmt: skip


def breaks(tokens: Sequence[int]) -> bool:
    """Whether the logits after this text are not finite."""
    return tokens[-1] == BREAKING and len(tokens) % 2 == 1


def answer(wire: WireRequest) -> tuple[list[int], str]:
    """Tokens and finish reason that this request must get unless it is aborted."""
    tokens, reason = truth(wire, MAX_MODEL_LEN)
    for count in range(len(tokens)):
        if breaks(wire.prompt_token_ids + tokens[:count]):
            return tokens[:count], "error"
    return tokens, reason


class Gate:
    """Keeps back one of so many requests; 0: none."""

    every = 0

    def awaited(self, request: Request) -> Polled | None:
        is_kept = self.every and int(request.request_id) % self.every == 0
        return Polled(int(request.request_id) % 3) if is_kept else None


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, schedules and commits in any order that the depth allows."""

    loop: Loop | None = None

    @initialize(
        groups=st.sampled_from(WINDOWS),
        depth=st.integers(0, 2),
        block_size=st.sampled_from([1, 2, 4]),
        spare=st.integers(0, 8),
        rows=st.integers(1, 8),
        budget=st.sampled_from([4, 8, 16]),
        tile=st.sampled_from([1, 2, 4]),
        policy=st.sampled_from(["fcfs", "priority"]),
        more=st.fixed_dictionaries(
            {
                "prefix": st.booleans(),
                "spacing": st.sampled_from([1, 1, 2, 3]),
                "enable_chunked_prefill": st.sampled_from([True, True, False]),
                "long_prefill_token_threshold": st.sampled_from([0, 0, 3]),
                "num_scheduler_steps": st.sampled_from([1, 1, 2, 5]),
            }
        ),
        # The most drafts, and which of them are wrong.
        drafts=st.sampled_from([None, None, (1, 2), (3, 0), (3, 3), (5, 7), (2, 1)]),
        on_device=st.booleans(),
        adaptive=st.booleans(),
    )
    def start(
        self, groups, depth, block_size, spare, rows, budget, tile, policy, more, drafts,
        on_device, adaptive,
    ):  # fmt: skip
        self.gate = Gate()
        if drafts is not None and more["spacing"] == 1:  # pipelines take no drafts
            most, wrong = drafts
            source = {"device_wrong": wrong} if on_device else {"proposer": TruthProposer(wrong)}
            more = {**more, **source, "most_drafts": most}
        self.loop = Loop(
            *groups,
            depth=depth,
            blocks=16 // block_size + 2 + spare,
            block_size=block_size,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            prefill_tile=tile,
            policy=policy,
            breaks=breaks,
            gates=[lambda wake: self.gate],
            adaptive=adaptive,
            **more,
        )
        self.wires: dict[str, WireRequest] = {}
        self.count = 0

    @rule(
        prompt=st.lists(st.sampled_from([0, 1, BREAKING]), min_size=1, max_size=3),
        length=st.integers(1, 14),
        max_tokens=st.integers(1, 12),
        eos=st.sampled_from([[], [], list(range(0, 97, 9))]),
        priority=st.integers(0, 2),
        scored=st.sampled_from([None, None, 0, 2]),
        salt=st.sampled_from([None, None, "a"]),
        forks=st.booleans(),
    )
    def add(self, prompt, length, max_tokens, eos, priority, scored, salt, forks):
        self.count += 1
        wire = make_wire(
            (prompt * length)[:length],
            str(self.count),
            forks=forks,
            max_tokens=max_tokens,
            eos_token_ids=eos,
            priority=priority,
            cache_salt=salt,
            sampling=RowSampling(prompt_logprobs=scored, logprobs=scored, stop_ids=eos),
            skip_reading_prefix_cache=scored is not None,
        )
        try:
            self.loop.add(wire)
        except RequestError:
            return
        self.wires[wire.request_id] = wire

    @precondition(lambda self: self.wires)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.wires)))
        ended = name in self.loop.finals
        assert (self.loop.abort(name) is None) == ended

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

    @rule(preempt=st.booleans())
    def reset_prefix_cache(self, preempt):
        idle = self.loop.cache.usage == 0
        assert self.loop.scheduler.reset_prefix_cache(reset_running_requests=preempt) == (
            preempt or idle
        )

    @rule(version=st.integers(0, 2))
    def change_weights(self, version):
        self.loop.scheduler.set_weights_version(version)

    @rule(every=st.sampled_from([0, 1, 2, 3]))
    def close_or_open_the_gate(self, every):
        self.gate.every = every

    @invariant()
    def counts_add_up(self):
        scheduler = self.loop.scheduler
        open_requests = set(self.wires) - set(self.loop.finals)
        assert scheduler.num_running + scheduler.num_waiting == len(open_requests)
        assert scheduler.has_unfinished == bool(open_requests)
        assert scheduler.num_running <= scheduler.config.max_num_seqs

    def teardown(self):
        if self.loop is None:
            return  # it was not built
        self.gate.every = 0
        self.loop.drain(steps=60 + 60 * len(self.wires))
        assert set(self.loop.finals) == set(self.wires)
        for name, wire in self.wires.items():
            self.check_answer(name, wire)

    def check_answer(self, name, wire):
        tokens, reason = answer(wire)
        given, final = self.loop.tokens[name], self.loop.finals[name]
        if final.finish_reason == "abort":
            assert given == tokens[: len(given)]
        else:
            assert (given, final.finish_reason) == (tokens, reason)
        deltas = [delta for delta in self.loop.deltas if delta.request_id == name]
        if given and wire.sampling.prompt_logprobs is not None:
            scores = deltas[0].prompt_logprobs
            assert scores.ids[:, 0].tolist() == wire.prompt_token_ids[1:]
            assert all(delta.logprobs is not None for delta in deltas if delta.token_ids)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = QUICK


@pytest.mark.slow
class TestSchedulerLarge(SchedulerMachine.TestCase):
    settings = LARGE
