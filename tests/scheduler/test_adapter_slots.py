"""Slots for adapters: shared by requests, kept while free, taken from the least recently used."""

from __future__ import annotations

from jengine.plan import RowSampling
from jengine.request import Request, WireRequest
from jengine.scheduler.adapter_slots import AdapterSlots


def request(adapter: str) -> Request:
    wire = WireRequest(
        request_id=adapter, prompt_token_ids=[5], sampling=RowSampling(), max_tokens=1,
        adapter=adapter,
    )  # fmt: skip
    return Request(wire, 16, 0)


def started(slots: AdapterSlots, adapter: str) -> Request:
    one = request(adapter)
    assert slots.have_room(one)
    slots.take(one)
    return one


def test_requests_of_one_adapter_share_a_slot_until_the_last_one_ends() -> None:
    slots = AdapterSlots(1)
    first, second = started(slots, "a"), started(slots, "a")
    assert first.adapter_slot == second.adapter_slot == 1
    slots.give_back(first)
    assert first.adapter_slot == 0
    assert not slots.have_room(request("b"))
    assert slots.have_room(request("")), "requests without an adapter need no slot"
    slots.give_back(second)
    assert started(slots, "b").adapter_slot == 1
    assert slots.in_use == 1


def test_an_adapter_keeps_its_slot_while_others_are_used_less() -> None:
    slots = AdapterSlots(2)
    for name in ("a", "b", "a"):
        slots.give_back(started(slots, name))
    kept = started(slots, "a").adapter_slot
    taken = started(slots, "c").adapter_slot
    assert {kept, taken} == {1, 2}
    assert not slots.have_room(request("b"))
    assert slots.have_room(request("a"))


def test_a_request_without_an_adapter_takes_and_gives_nothing() -> None:
    slots = AdapterSlots(1)
    none = started(slots, "")
    slots.give_back(none)
    assert none.adapter_slot == slots.in_use == 0
