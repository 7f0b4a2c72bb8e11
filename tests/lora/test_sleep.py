"""Adapters while an engine sleeps: slots are freed, and filled again from the host's memory."""

from __future__ import annotations

import pytest

from tests.api.test_sleep import counted_compiles, live_bytes
from tests.lora.engines import Setup
from tests.marks import slow

NAMES = ["all", None, "queries", "all"]


def tokens(made: Setup, names: list[str | None]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in made.answer(names)]


@pytest.mark.parametrize("level", [1, *slow(2)])
def test_slots_are_freed_and_filled_again(made: Setup, level: int) -> None:
    """Also for an adapter that is loaded, and one that is removed, while the engine sleeps."""
    llm, names = made.llm, [*NAMES]
    expected, others = tokens(made, names), tokens(made, ["mlp"] * 4)
    assert tokens(made, names) == expected
    llm.remove_lora(made.adapters["mlp"].lora_int_id)
    stacks = llm.engine.loaded.adapters
    assert stacks is not None
    size, before = sum(leaf.nbytes for leaf in stacks.leaves), live_bytes()
    with counted_compiles() as compiled:
        llm.sleep(level)
        assert stacks.leaves == () and before - live_bytes() >= size > 0
        llm.remove_lora(made.adapters["queries"].lora_int_id)
        llm.add_lora(made.adapters["mlp"])
        if level == 2:
            llm.reload_weights()
        assert llm.wake_up()
        assert sum(leaf.nbytes for leaf in stacks.leaves) == size
        assert live_bytes() == before
        assert tokens(made, names) == expected
        assert tokens(made, ["mlp"] * 4) == others
    assert not compiled
