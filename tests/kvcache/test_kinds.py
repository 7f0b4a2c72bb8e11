"""A new kind is one class and a line in the table of kinds; the scheduler is not changed."""

from __future__ import annotations

import pytest

from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.kinds import KINDS
from jengine.scheduler.scheduler import Scheduler
from tests.kvcache.cache_cases import FULL
from tests.kvcache.slot_group import SlotGroup
from tests.scheduler.scheduler_loop import lengths, make_wire

RECURRENT = CacheGroup(CacheSpec("recurrent", 1, 8), (1,))


@pytest.mark.parametrize("groups", [(RECURRENT,), (FULL, RECURRENT)])
def test_chunks_end_where_every_group_lets_them(
    groups: tuple[CacheGroup, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "recurrent", SlotGroup)
    cache = CacheCoordinator(CacheConfig(groups, 4, (40,) * len(groups)))
    scheduler = Scheduler(ScheduleConfig(4, 32, 64, prefill_tile=1), cache, depth=9)
    scheduler.add(make_wire(21, "a"))
    plans = [scheduler.schedule() for _ in range(3)]
    assert [lengths(plan) for plan in plans] == [[8], [8], [5]]
    scheduler.abort("a")
    assert cache.usage == 0
    # Of 21 tokens 20 are in whole blocks, of which a snapshot was kept after 16.
    scheduler.add(make_wire([*make_wire(21, "a").prompt_token_ids, 1], "b"))
    plan = scheduler.schedule()
    assert plan is not None and plan.entries.starts.tolist() == [16]
    assert [len(new.blocks) for new in plan.new_blocks if new.group == len(groups) - 1] == [2]
    cache.check()
