"""What a scheduler records of its requests and steps, on a clock that the test moves."""

from __future__ import annotations

from jengine.counts import Counts, ProgramTotals
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import TokenDelta
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.scheduler import Scheduler
from tests.scheduler.scheduler_loop import Loop, make_wire


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TimedLoop(Loop):
    """A loop without overlap in which every step takes one second, and its scheduling none."""

    def __init__(self, **settings: object) -> None:
        super().__init__(depth=0, **settings)  # type: ignore[arg-type]
        self.clock = Clock()
        recorder = Recorder(engine=3, clock=self.clock)
        self.scheduler = Scheduler(
            self.scheduler.config, CacheCoordinator(self.cache.config), depth=0, recorder=recorder
        )
        self.cache = self.scheduler.cache

    def commit(self) -> list[TokenDelta]:
        self.clock.now += 1.0
        return super().commit()

    @property
    def counts(self) -> Counts:
        return self.scheduler.counts(ProgramTotals())


def test_times_ride_on_the_first_tokens_and_on_the_end() -> None:
    loop = TimedLoop(max_num_batched_tokens=8)
    loop.add(make_wire(12, "a", max_tokens=4))
    loop.clock.now += 2.5
    loop.drain()
    (first, *between, last) = loop.deltas
    assert first.times is not None and last.times is not None
    assert [delta.times for delta in between] == [None, None]
    # A prompt of 12 tokens in steps of 8 takes two.
    assert (first.times.queue, first.times.prefill, first.times.decode) == (2.5, 2.0, 0.0)
    assert (last.times.queue, last.times.prefill, last.times.decode) == (2.5, 2.0, 3.0)
    assert last.times.engine == 3 and last.times.preemptions == 0


def test_a_request_of_one_token_has_its_times_once() -> None:
    loop = TimedLoop()
    loop.add(make_wire(5, "a", max_tokens=1))
    loop.drain()
    (only,) = loop.deltas
    assert only.times is not None
    assert (only.times.queue, only.times.prefill, only.times.decode) == (0.0, 1.0, 0.0)


def test_waiting_after_a_preemption_counts_where_it_happened() -> None:
    """Before the first token it is queue time, afterwards decode time; nothing is negative."""
    loop = TimedLoop(blocks=7, block_size=4)
    loop.add(make_wire(8, "a", max_tokens=10), make_wire(8, "b", max_tokens=10))
    loop.drain()
    assert loop.counts.preemptions > 0
    for name in "ab":
        final = loop.finals[name].times
        assert final is not None and min(final.queue, final.prefill, final.decode) >= 0
        assert final.queue + final.prefill + final.decode <= loop.clock.now - 100
    assert sum(loop.finals[name].times.preemptions for name in "ab") == loop.counts.preemptions


def test_an_aborted_request_says_how_long_it_waited() -> None:
    loop = TimedLoop(max_num_seqs=1)
    loop.add(make_wire(4, "a", max_tokens=6), make_wire(4, "b"))
    loop.step()
    loop.step()
    waiting, running = loop.abort("b"), loop.abort("a")
    assert waiting is not None and waiting.times is not None
    assert (waiting.times.queue, waiting.times.prefill) == (2.0, 0.0)
    assert running is not None and running.times is not None
    assert (running.times.prefill, running.times.decode) == (1.0, 1.0)


def test_counters_count_each_token_once() -> None:
    loop = TimedLoop(max_num_batched_tokens=32)
    prompt = list(range(9))
    loop.add(make_wire(prompt, "a", max_tokens=3))
    loop.drain()
    loop.add(make_wire(prompt, "b", max_tokens=3))  # two blocks of 4 are cached
    loop.drain()
    counts = loop.counts
    assert (counts.prompt_tokens, counts.cached_prompt_tokens) == (18, 8)
    assert counts.generation_tokens == 6
    assert counts.query_tokens == (9 + 2) + (1 + 2)
    assert counts.steps == 6
    assert counts.step_tokens.counts[:3] == [5, 0, 1]  # up to 1, 8 and 16 tokens
    assert counts.step_tokens.total == counts.query_tokens
    # Contexts: 1 to 9 for the prompt, then 10 and 11; for the second request 9, 10 and 11.
    assert counts.attended_tokens == sum(range(1, 10)) + 10 + 11 + 9 + 10 + 11
    assert counts.loaded_tokens == 9 + 10 + 11 + 9 + 10 + 11


def test_recomputed_prompts_are_counted_once() -> None:
    loop = TimedLoop(blocks=7, block_size=4)
    loop.add(make_wire(8, "a", max_tokens=10), make_wire(8, "b", max_tokens=10))
    loop.drain()
    assert loop.counts.preemptions > 0
    assert loop.counts.prompt_tokens == 16 and loop.counts.generation_tokens == 20


def test_a_multi_step_decode_counts_every_token_and_run() -> None:
    loop = TimedLoop(num_scheduler_steps=4)
    loop.add(make_wire(4, "a", max_tokens=9))
    loop.drain()
    assert loop.counts.generation_tokens == 9
    assert loop.counts.steps == 1 + 8


def test_a_step_that_is_not_finite_counts_a_corrupted_request_and_no_token() -> None:
    loop = TimedLoop(breaks=lambda tokens: len(tokens) >= 6)
    loop.add(make_wire(4, "a", max_tokens=9))
    loop.drain()
    assert loop.finals["a"].finish_reason == "error"
    assert loop.counts.corrupted == 1
    assert loop.counts.generation_tokens == len(loop.tokens["a"])


def test_phases_are_timed_and_the_last_step_ages() -> None:
    loop = TimedLoop()
    loop.add(make_wire(4, "a", max_tokens=3))
    loop.drain()
    assert loop.counts.last_step_age == 0.0
    loop.clock.now += 7.0
    assert loop.counts.last_step_age == 7.0
    seconds = loop.counts.step_seconds
    assert seconds["run"].total == 3.0 and sum(seconds["run"].counts) == 3
    assert seconds["schedule"].total == seconds["commit"].total == 0.0


def test_requests_that_a_gate_keeps_back_are_deferred() -> None:
    class Closed:
        def awaited(self, request: object) -> str:
            return "nothing comes"

    loop = Loop(gates=[lambda wake: Closed()])
    loop.add(make_wire(4, "a"), make_wire(4, "b"))
    loop.schedule()
    counts = loop.scheduler.counts(ProgramTotals())
    assert (counts.waiting, counts.deferred) == (2, 2)
    loop.abort("a")
    counts = loop.scheduler.counts(ProgramTotals())
    assert (counts.waiting, counts.deferred) == (1, 1)


def test_a_snapshot_does_not_change_with_later_steps() -> None:
    loop = TimedLoop()
    loop.add(make_wire(4, "a", max_tokens=2))
    loop.step()
    before = loop.counts
    kept = list(before.step_tokens.counts)
    loop.drain()
    assert before.step_tokens.counts == kept != loop.counts.step_tokens.counts
