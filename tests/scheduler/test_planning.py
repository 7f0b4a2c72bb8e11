"""What a plan holds: budget, chunks, rows, order, and what is left out."""

from __future__ import annotations

import pytest

from jengine.errors import ConfigError, RequestError
from jengine.plan import RowSampling
from jengine.request import Request
from jengine.scheduler.queue import Polled
from tests.executor.scripted import scripted_tokens
from tests.kvcache.cache_cases import sliding
from tests.scheduler.scheduler_loop import VOCAB, Loop, lengths, make_wire, rows, samples, starts


def many(count, length, **more):
    return [make_wire(length, f"r{i}", **more) for i in range(count)]


def large(**more):
    return Loop(blocks=500, max_model_len=1000, max_num_batched_tokens=1024, **more)


def test_a_prompt_that_waits_to_run_whole_is_not_looked_up_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(depth=0, enable_chunked_prefill=False)
    lookups: list[str] = []
    find = loop.cache.find_prefix
    monkeypatch.setattr(
        loop.cache, "find_prefix", lambda one: lookups.append(one.request_id) or find(one)
    )
    first, second = make_wire(3, "first", max_tokens=20), make_wire(32, "second")
    loop.add(first)
    loop.step()
    loop.add(second)
    loop.drain()
    loop.assert_truth(first, second)
    assert lookups == ["first", "second", "second"]


def test_a_prompt_that_waits_to_run_whole_runs_once_its_prefix_is_cached() -> None:
    loop = Loop(depth=0, enable_chunked_prefill=False)
    first = make_wire(3, "first", max_tokens=20)
    answer = scripted_tokens(first.prompt_token_ids, 20, VOCAB)
    second = make_wire([*first.prompt_token_ids, *answer, *range(9)], "second")
    loop.add(first)
    loop.step()
    loop.add(second)
    while "first" not in loop.finals:
        loop.step()
    assert loop.tokens["second"], "one block of its prefix is enough"
    loop.drain()
    loop.assert_truth(first, second)


def test_the_budget_is_filled_and_the_last_prompt_cut():
    loop = large()
    loop.add(*many(3, 400))
    plan = loop.schedule()
    assert lengths(plan) == [400, 400, 224]
    assert samples(plan) == [True, True, False]
    plan = loop.schedule()
    assert plan.num_decodes == 2 and lengths(plan) == [1, 1, 176]


def test_fills_cost_whole_tiles_and_are_cut_to_them():
    loop = large(prefill_tile=32)
    loop.add(*many(3, 400))
    assert lengths(loop.schedule()) == [400, 400, 192]  # 416 + 416 + 192 = 1024


def test_a_budget_without_room_for_a_tile_leaves_prompts_waiting():
    loop = Loop(prefill_tile=16, max_num_batched_tokens=16, max_num_seqs=4)
    loop.add(*many(2, 5, max_tokens=3))
    assert lengths(loop.step()) == [5]
    assert lengths(loop.step()) == [1], "15 tokens are left, less than a tile"
    loop.drain()


def test_decodes_come_first_and_cost_one():
    loop = Loop(prefill_tile=4, max_num_batched_tokens=10)
    loop.add(make_wire(4, "a", max_tokens=9), make_wire(4, "b", max_tokens=9))
    loop.step()
    loop.add(make_wire(30, "c"))
    plan = loop.step()
    assert (plan.num_decodes, lengths(plan), rows(plan)) == (2, [1, 1, 8], [0, 1, 2])


def test_the_long_prompt_cap_holds_only_with_company():
    loop = Loop(long_prefill_token_threshold=6)
    loop.add(make_wire(20, "a"))
    assert lengths(loop.schedule()) == [20]
    loop = Loop(long_prefill_token_threshold=6)
    loop.add(make_wire(20, "a"), make_wire(20, "b"))
    assert lengths(loop.schedule()) == [6, 6]


def test_the_long_prompt_cap_is_cut_to_whole_tiles():
    loop = Loop(long_prefill_token_threshold=7, prefill_tile=4)
    loop.add(make_wire(20, "a"), make_wire(6, "b"))
    assert lengths(loop.schedule()) == [4, 6]


def test_a_cap_below_a_tile_still_moves():
    loop = Loop(long_prefill_token_threshold=3, prefill_tile=8)
    loop.add(make_wire(20, "a"), make_wire(20, "b"))
    assert lengths(loop.schedule()) == [3, 3]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it():
    loop = Loop(enable_chunked_prefill=False, max_num_batched_tokens=32)
    wires = [make_wire(20, "a"), make_wire(20, "b"), make_wire(5, "c")]
    loop.add(*wires)
    assert lengths(loop.step()) == [20], "b does not fit, and holds up c"
    assert lengths(loop.step()) == [1, 20, 5]
    loop.drain()
    loop.assert_truth(*wires)


def test_without_chunks_a_request_that_outgrew_a_step_resumes_in_chunks():
    loop = Loop(enable_chunked_prefill=False, max_num_batched_tokens=8, prefix=False, blocks=17)
    wire = make_wire(6, "a", max_tokens=30)
    loop.add(wire)
    for _ in range(12):
        loop.step()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    loop.drain()
    loop.assert_truth(wire)


def test_a_request_that_cannot_run_does_not_hold_up_the_next():
    loop = Loop(max_num_batched_tokens=4)
    loop.add(make_wire(3, "a", max_tokens=2), make_wire(9, "b"))
    loop.schedule()
    loop.schedule()
    # a has its last token in flight; b runs although it stands behind a.
    loop.commit()
    assert rows(loop.schedule()) == [1]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_no_step_is_wasted_at_the_length_cap(depth, max_tokens):
    loop = Loop(depth=depth)
    wire = make_wire(7, max_tokens=max_tokens)
    loop.add(wire)
    loop.drain()
    assert sum(plan.num_tokens for plan in loop.plans) == 7 + max_tokens - 1
    loop.assert_truth(wire)


def test_chunks_of_one_prompt_follow_each_other_without_waiting():
    loop = Loop(depth=2, max_num_batched_tokens=4)
    loop.add(make_wire(12))
    assert [starts(loop.schedule()) for _ in range(3)] == [[0], [4], [8]]
    assert loop.schedule() is None, "depth 2 means three plans at most"


def test_rows_are_the_smallest_free_ones_and_released_once():
    loop = Loop(depth=0, max_num_seqs=3)
    loop.add(*many(3, 3, max_tokens=9))
    assert [new.row for new in loop.step().new_rows] == [0, 1, 2]
    loop.abort("r1")
    loop.abort("r0")
    loop.add(make_wire(3, "late"))
    plan = loop.step()
    assert sorted(plan.released) == [0, 1]
    assert [new.row for new in plan.new_rows] == [0]
    assert loop.step().released == []


def test_released_rows_wait_for_the_next_plan():
    loop = Loop(depth=0)
    loop.add(make_wire(3, "a"))
    loop.step()
    loop.abort("a")
    assert loop.schedule() is None
    loop.add(make_wire(3, "b"))
    assert loop.schedule().released == [0]


def test_a_new_row_brings_its_tokens_blocks_and_sampling():
    loop = Loop()
    sampling = RowSampling(temperature=0.5, seed=7)
    wire = make_wire(9, sampling=sampling)
    loop.add(wire)
    plan = loop.schedule()
    (new,), (blocks,) = plan.new_rows, plan.new_blocks
    assert (new.row, new.token_ids, new.prompt_length) == (0, wire.prompt_token_ids, 9)
    assert new.sampling is sampling
    assert (blocks.row, blocks.group, blocks.first, len(blocks.blocks)) == (0, 0, 0, 3)


def test_decode_gains_a_block_only_at_a_block_boundary():
    loop = Loop()
    loop.add(make_wire(7, max_tokens=8))
    loop.drain()
    assert [bool(plan.new_blocks) for plan in loop.plans[:7]] == [
        True, False, True, False, False, False, True,
    ]  # fmt: skip


def test_equal_prompts_share_blocks_within_one_step():
    loop = Loop()
    prompt = list(range(10))
    wires = [make_wire(prompt, name) for name in "abc"]
    loop.add(*wires)
    assert lengths(loop.schedule()) == [10, 2, 2]
    loop.drain()
    loop.assert_truth(*wires)
    assert [loop.finals[name].num_cached_tokens for name in "abc"] == [0, 8, 8]


def test_a_next_turn_finds_the_answer_before_it():
    loop = Loop()
    first = make_wire(10, "a", max_tokens=7)
    loop.add(first)
    loop.drain()
    turn = make_wire(first.prompt_token_ids + loop.tokens["a"] + [1, 2], "b")
    loop.add(turn)
    loop.drain()
    assert loop.finals["b"].num_cached_tokens == 16
    loop.assert_truth(turn)


def test_sliding_windows_hold_few_blocks():
    loop = Loop(sliding(6), blocks=9, max_num_batched_tokens=8)
    wire = make_wire(20, max_tokens=40)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    assert loop.scheduler.num_preemptions == 0


class Closed:
    """A gate for the requests with these names."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def awaited(self, request: Request) -> Polled | None:
        return Polled(request.request_id) if request.request_id in self.names else None


def test_a_gate_keeps_a_request_back_and_lets_others_pass():
    gate = Closed("a", "c")
    loop = Loop(gates=[lambda wake: gate])
    wires = [make_wire(5, name, max_tokens=3) for name in "abcd"]
    loop.add(*wires)
    assert [new.token_ids for new in loop.step().new_rows] == [
        wires[1].prompt_token_ids,
        wires[3].prompt_token_ids,
    ]
    assert loop.step().new_rows == []
    gate.names.clear()
    assert [new.token_ids for new in loop.step().new_rows] == [
        wires[0].prompt_token_ids,
        wires[2].prompt_token_ids,
    ], "in the order in which they came"
    loop.drain()
    loop.assert_truth(*wires)


def test_a_prompt_that_waits_for_room_is_not_looked_up_at_every_step(monkeypatch):
    loop = Loop(blocks=17, max_model_len=64)
    runs, waits = make_wire(30, "a", max_tokens=20), make_wire(40, "b", max_tokens=3)
    loop.add(runs)
    loop.step()
    loop.add(waits)
    looked_up = []
    find_prefix = loop.cache.find_prefix
    monkeypatch.setattr(
        loop.cache, "find_prefix", lambda one: looked_up.append(one) or find_prefix(one)
    )
    for _ in range(12):
        loop.step()
    assert loop.scheduler.num_waiting == 1 and len(looked_up) <= 2
    loop.drain()
    loop.assert_truth(runs, waits)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(("next_drafts", "tokens"), [(5, 1), (5, 9), (3, 4), (1, 12)])
def test_a_request_is_refused_or_runs_in_a_small_cache_with_room_for_drafts(
    depth: int, next_drafts: int, tokens: int
):
    """Of a window's blocks, those of a chunk and of the drafts after it are held at a time."""
    refused, ran = [], []
    for blocks in range(4, 40):
        loop = Loop(
            sliding(3), blocks=blocks, block_size=1, depth=depth, device_wrong=7,
            most_drafts=next_drafts, max_num_batched_tokens=16, max_model_len=32,
        )  # fmt: skip
        try:
            loop.add(make_wire(13, max_tokens=tokens))
        except RequestError:
            refused.append(blocks)
        else:
            loop.drain(steps=100)
            ran.append(blocks)
    assert refused and ran and refused[-1] < ran[0]


def test_nothing_to_do_is_no_plan():
    loop = Loop()
    assert loop.schedule() is None
    assert not loop.scheduler.has_unfinished


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (make_wire([]), "0 tokens"),
        (make_wire(3, max_tokens=0), "max_tokens=0"),
        (make_wire(64), "max_model_len=64"),
        (make_wire(17, max_tokens=30), "the cache cannot hold 46"),
        (make_wire(3, sampling=RowSampling(prompt_logprobs=1)), "skip_reading_prefix_cache"),
    ],
)
def test_what_could_never_run_is_refused(wire, words):
    loop = Loop(blocks=12)
    with pytest.raises(RequestError, match=words):
        loop.add(wire)
    assert not loop.scheduler.has_unfinished


def test_a_prompt_larger_than_a_step_is_refused_without_chunks():
    loop = Loop(enable_chunked_prefill=False, max_num_batched_tokens=10, prefill_tile=4)
    with pytest.raises(RequestError, match="at most 8"):
        loop.add(make_wire(9))
    loop.add(make_wire(8))


def test_an_identity_in_use_is_refused():
    loop = Loop()
    loop.add(make_wire(3))
    with pytest.raises(RequestError, match="already"):
        loop.add(make_wire(3))
    loop.drain()


def test_a_tile_larger_than_a_step_is_refused():
    with pytest.raises(ConfigError, match="prefill_tile=32"):
        Loop(prefill_tile=32, max_num_batched_tokens=16)


def test_stages_get_a_share_of_the_rows_each():
    """Plans that run beside each other decode other rows, and a row's token waits to be sampled."""
    loop = Loop(depth=2, spacing=3)
    loop.add(*many(6, 3, max_tokens=9))
    loop.step()  # all prompts; nothing else can run before their tokens are there
    assert loop.step() is None
    decoded = [rows(loop.step()) for _ in range(6)]
    assert decoded == [[0, 1], [2, 3], [4, 5]] * 2
    loop.drain()


def test_chunks_of_one_prompt_follow_each_other_through_the_stages():
    loop = Loop(depth=2, spacing=3, max_num_batched_tokens=8)
    loop.add(make_wire(20, "a"))
    assert [lengths(loop.step()) for _ in range(3)] == [[8], [8], [4]]
    loop.drain()


def test_decodes_that_begin_alike_run_side_by_side_where_attention_reads_that_once() -> None:
    """By their first two blocks of four tokens; within those, and without them, by length."""
    prompts = {"a": [*range(20), 90], "b": [50] * 10, "c": [*range(30), 91], "d": [*range(7), 5, 9],
               "e": [50] * 22, "f": [1]}  # fmt: skip
    orders = []
    for shared_blocks in (0, 2):
        loop = large(depth=0, shared_blocks=shared_blocks)
        loop.add(*(make_wire(prompt, name) for name, prompt in prompts.items()))
        first = loop.step()
        assert first is not None
        names = {tuple(prompt): name for name, prompt in prompts.items()}
        owner = {new.row: names[tuple(new.token_ids)] for new in first.new_rows}
        orders.append("".join(owner[row] for row in rows(loop.step())))
    assert orders[0] == "fdbaec"
    assert orders[1][0] == "f", "too short to share anything"
    assert {"ac", "be"} <= {orders[1][at : at + 2] for at in range(5)}
