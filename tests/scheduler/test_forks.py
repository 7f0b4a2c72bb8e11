"""Requests that go on from others' last tokens: blocks are copied, and one token runs.

The scripted executor asserts that every row reads back its own text.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jengine.config import CacheGroup
from jengine.request import WireRequest
from tests.kvcache.cache_cases import FULL, recurrent, sliding
from tests.scheduler.scheduler_loop import Loop, lengths, make_wire, starts

GROUPS = {
    "full": (FULL,), "sliding": (sliding(3),), "both": (FULL, sliding(6)),
    "recurrent": (recurrent(8),), "hybrid": (FULL, recurrent(8)),
    "no snapshots": (recurrent(None),),
}  # fmt: skip
kinds = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)


def ended(loop: Loop, prompt: int | list[int], name: str, **more: Any) -> list[int]:
    """Run a request for one token to its end. What others may go on from: all that was computed."""
    wire = make_wire(prompt, name, max_tokens=1, forks=True, **more)
    loop.add(wire)
    loop.drain()
    return wire.prompt_token_ids


def runs(loop: Loop, known: list[int], name: str, **more: Any) -> tuple[list[int], list[int]]:
    """Where the first step of a request for one token begins, and how much it runs."""
    wire: WireRequest = make_wire(known, name, max_tokens=1, **{"forks": True, **more})
    loop.add(wire)
    plan = loop.step()
    loop.drain()
    loop.assert_truth(wire)
    return starts(plan), lengths(plan)


@kinds
@pytest.mark.parametrize("length", [1, 3, 6, 15])
def test_a_fork_runs_one_token(groups: tuple[CacheGroup, ...], length: int) -> None:
    loop = Loop(*groups)
    known = ended(loop, length, "a")
    for token in (5, 6):
        assert runs(loop, [*known, token], str(token)) == ([length], [1])
    copied = [forks for plan in loop.plans for forks in plan.forks]
    assert [forks.group for forks in copied] == [*range(len(groups))] * 2
    assert all(forks.sources != forks.targets for forks in copied)
    # And so on, from each.
    assert runs(loop, [*known, 5, 7], "5, 7") == ([length + 1], [1])


@kinds
def test_several_forks_in_one_step(groups: tuple[CacheGroup, ...]) -> None:
    loop = Loop(*groups)
    known = ended(loop, 6, "a")
    wires = [make_wire([*known, token], str(token), max_tokens=1, forks=True) for token in range(4)]
    loop.add(*wires)
    plan = loop.step()
    assert lengths(plan) == [1] * 4
    loop.drain()
    loop.assert_truth(*wires)


def test_a_full_cache_may_copy_a_block_to_itself() -> None:
    loop = Loop(blocks=5, max_num_seqs=2)
    known = ended(loop, 6, "a")  # two blocks of four, one partly filled
    loop.add(make_wire(8, "b", max_tokens=1))
    loop.drain()
    wires = [make_wire([*known, token], str(token), max_tokens=1, forks=True) for token in (5, 6)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    copied = [forks for plan in loop.plans for forks in plan.forks]
    assert copied and any(set(forks.sources) & set(forks.targets) for forks in copied)


@pytest.mark.parametrize(
    "more", [{"forks": False}, {"cache_salt": "a"}, {"skip_reading_prefix_cache": True}]
)
def test_others_run_what_is_in_no_full_block(more: dict[str, Any]) -> None:
    loop = Loop()
    known = ended(loop, 6, "a")
    (start,), (length,) = runs(loop, [*known, 5], "b", **more)
    assert start in (0, 4) and start + length == 7


def test_other_tokens_are_not_found() -> None:
    loop = Loop()
    known = ended(loop, 6, "a")
    assert runs(loop, [*known[:5], known[5] + 1, 5], "b") == ([4], [3])
    assert runs(loop, [*known, 5, 6], "c") == ([4], [4]), "a token between them is not computed"


@pytest.mark.parametrize("how", ["reset", "weights"])
def test_what_may_not_be_found_again_is_not(how: str) -> None:
    loop = Loop()
    known = ended(loop, 6, "a")
    if how == "reset":
        assert loop.scheduler.reset_prefix_cache()
    else:
        loop.scheduler.set_weights_version(1)
    assert runs(loop, [*known, 5], "b") == ([0], [7])


def test_weights_that_change_while_a_request_runs_leave_nothing_of_it() -> None:
    loop = Loop()
    loop.add(wire := make_wire(6, "a", max_tokens=1, forks=True))
    loop.schedule()
    loop.scheduler.set_weights_version(1)
    loop.drain()
    assert runs(loop, [*wire.prompt_token_ids, 5], "b") == ([0], [7])


@pytest.mark.parametrize("length", [3, 6])
def test_a_fork_without_finite_logits_takes_all_tails_with_it(length: int) -> None:
    known = list(range(20, 20 + length))
    loop = Loop(breaks=lambda tokens: tokens[-1] == 5)
    ended(loop, known, "a")
    loop.add(make_wire([*known, 5], "broken", max_tokens=1, forks=True))
    loop.drain()
    assert loop.finals["broken"].finish_reason == "error"
    (start,), _ = runs(loop, [*known, 6], "b")
    assert start == 0, "its full blocks are not trusted, and neither is what it was copied from"


def test_a_request_that_steps_still_run_on_leaves_nothing() -> None:
    """They write tokens that do not count to the state that would be copied."""
    loop = Loop(recurrent(8), depth=2)
    wire = make_wire(5, "a", max_tokens=5, stop_token_ids=list(range(97)), forks=True)
    loop.add(wire)
    for _ in range(3):
        loop.schedule()
    loop.drain()
    known = [*wire.prompt_token_ids, *loop.tokens["a"]]
    assert len(known) == 6
    assert runs(loop, [*known, 5], "b") == ([0], [7])


def test_a_request_may_end_where_a_state_stays_as_a_snapshot() -> None:
    loop = Loop(recurrent(4), block_size=1, depth=0)
    loop.add(wire := make_wire(3, "a", max_tokens=2, forks=True))
    loop.drain()
    known = [*wire.prompt_token_ids, *loop.tokens["a"]]
    assert runs(loop, known, "b") == ([4], [1])


def test_a_block_that_a_fork_has_filled_is_found() -> None:
    loop = Loop()
    known = [*ended(loop, 6, "a"), 5]
    loop.add(make_wire(known, "b", max_tokens=3, forks=True))
    loop.drain()
    known += loop.tokens["b"]
    assert runs(loop, known, "c", forks=False) == ([8], [2])


def test_prefixes_stay_when_tails_are_forgotten() -> None:
    """A tail that is a full block is one of them."""
    loop = Loop(blocks=33)  # 32 blocks: 16 tails
    heads = [ended(loop, [*range(number, number + 4)], str(number)) for number in range(20)]
    assert runs(loop, [*heads[0], 5], "b", forks=False) == ([4], [1])


def test_tails_fill_a_part_of_the_cache_only() -> None:
    loop = Loop(blocks=9, max_model_len=32)  # eight blocks: four tails
    heads = [ended(loop, 2, str(number)) for number in range(6)]
    assert loop.cache.groups[0].pool.num_cached == 4
    assert runs(loop, [*heads[-1], 5], "new") == ([2], [1])
    assert runs(loop, [*heads[0], 5], "old") == ([0], [3])


@settings(derandomize=True, max_examples=150)
@given(
    groups=st.sampled_from([*GROUPS.values()]),
    sizes=st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 30), st.integers(1, 6)),
    depth=st.integers(0, 2),
    data=st.data(),
)
def test_a_random_search(
    groups: tuple[CacheGroup, ...], sizes: tuple[int, int, int], depth: int, data: st.DataObject
) -> None:
    """Sequences go on from any before them, beside other requests, in caches of all sizes."""
    block_size, spare, rows = sizes
    loop = Loop(
        *groups, depth=depth, block_size=block_size, blocks=16 // block_size + 2 + spare,
        max_model_len=16, max_num_seqs=rows, prefill_tile=2, max_num_batched_tokens=8,
    )  # fmt: skip
    known, wires = [[1], [2, 3, 4, 5, 6]], list[WireRequest]()
    for number in range(data.draw(st.integers(2, 6))):
        for index in data.draw(st.lists(st.integers(0, len(known) - 1), min_size=1, max_size=4)):
            tokens, forks = known[index], data.draw(st.sampled_from([True, True, True, False]))
            name = f"{number}.{len(wires)}"
            most = data.draw(st.sampled_from([1, 1, 1, 3]))
            wires.append(make_wire(tokens, name, max_tokens=most, forks=forks))
            loop.add(wires[-1])
            if len(tokens) < 14:
                known.append([*tokens, data.draw(st.integers(0, 1))])
        for _ in range(data.draw(st.integers(0, 5))):
            loop.step()
        if data.draw(st.integers(0, 9)) == 0:
            loop.scheduler.preempt_all()
        if data.draw(st.booleans()):
            loop.drain()
    loop.drain()
    loop.assert_truth(*wires)
