"""Slots of the host's memory: the least recently used content leaves, pinned ones stay."""

from __future__ import annotations

from jengine.kvcache.host_slots import HostSlots

A, B, C = b"a", b"b", b"c"


def test_the_least_recently_used_content_gives_way() -> None:
    slots = HostSlots(2)
    first, second = slots.take(A), slots.take(B)
    assert {first, second} == {0, 1}
    slots.touch(A)
    assert slots.take(C) == second
    assert (slots.find(A), slots.find(B), slots.find(C)) == (first, None, second)
    slots.check()


def test_a_pinned_slot_keeps_its_content_until_the_copy_has_ended() -> None:
    slots = HostSlots(1)
    slot = slots.take(A)
    assert slot is not None
    slots.pin(slot)
    assert slots.take(B) is None
    slots.forget(A)
    slots.check()
    assert slots.find(A) is None and slots.take(B) is None  # it is still being copied
    slots.unpin(slot)
    assert slots.take(B) == slot
    slots.forget_all()
    slots.check()
    assert len(slots) == 0 and slots.take(C) == slot
