"""Prompts are cut at compiled sizes where padding would take longer than the rest of them."""

from __future__ import annotations

import pytest

from jengine.scheduler.prompt_cuts import PromptCuts
from tests.scheduler.scheduler_loop import Loop, lengths, make_wire

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


@pytest.mark.parametrize(
    ("total", "decodes", "now"),
    [
        (4100, 0, 4096),  # 4 tokens take a step that reads the weights, 4,092 of padding more
        (4100, 256, 4096),
        (300, 0, 300),  # two steps of 256 take as long as one of 512
        (300, 8, 256),  # the next step runs anyway, and has room for the rest
        (300, 256, 256),
        (600, 0, 512),
        (200, 8, 200),  # padding up to what is computed while weights are read costs nothing
        (250, 256, 250),
        (130, 256, 128),
        (512, 256, 512),
        (40, 256, 40),  # no size is smaller
        (9000, 256, 9000),  # nor is any larger
    ],
)
def test_a_step_is_cut_where_that_saves_time(total: int, decodes: int, now: int) -> None:
    assert PromptCuts(SIZES, 256).cut(total, decodes) == now
    assert PromptCuts((), 0).cut(total, decodes) == total


def cutting(**more: object) -> Loop:
    settings = {"max_model_len": 1000, "max_num_batched_tokens": 512, "prefill_tile": 4,
                "prefill_sizes": (32, 64, 128, 256, 512), "full_step": 32}  # fmt: skip
    return Loop(blocks=900, **{**settings, **more})


def test_prompts_fill_a_compiled_size_and_the_rest_follows() -> None:
    loop = cutting()
    wires = [make_wire(70, f"r{i}", max_tokens=3) for i in range(4)]
    loop.add(*wires)
    # 288 tokens in whole tiles: 256 now, then the rest before anything else.
    assert lengths(loop.step()) == [70, 70, 70, 40]
    assert lengths(loop.step())[-1] == 30
    loop.drain()
    loop.assert_truth(*wires)


def test_a_cut_may_leave_whole_prompts_waiting() -> None:
    loop = cutting()
    wires = [make_wire(64, f"r{i}", max_tokens=3) for i in range(3)]
    loop.add(*wires)
    assert lengths(loop.step()) == [64, 64]
    loop.drain()
    loop.assert_truth(*wires)


def test_prompts_that_may_not_be_cut_are_not() -> None:
    whole = cutting(enable_chunked_prefill=False, prefill_sizes=())
    whole.add(*(make_wire(70, f"r{i}") for i in range(4)))
    assert lengths(whole.step()) == [70, 70, 70, 70]


def test_only_prompts_that_have_a_row_are_counted() -> None:
    loop = cutting(max_num_seqs=2)
    loop.add(*(make_wire(64, f"r{i}", max_tokens=2) for i in range(5)))
    assert lengths(loop.step()) == [64, 64]  # 128; with the others 320, which are cut at 256
    loop.drain()
