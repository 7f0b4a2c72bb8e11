"""Plans: entries by column are the entries that were put in, and survive the wire."""

from __future__ import annotations

import msgspec
import pytest

from jengine.plan import NO_ENTRIES, NOTHING, TOKENS, Entries, Entry, Plan, Wanted

ENTRIES = [Entry(4, 30, 1), Entry(0, 8, 13, NOTHING), Entry(2, 0, 3)]


def test_entries_are_read_as_they_were_made_one_by_one_and_by_column() -> None:
    entries = Entries.of(ENTRIES)
    assert list(entries) == ENTRIES and len(entries) == 3
    assert all(isinstance(entry.wanted, Wanted) for entry in entries)
    assert entries == Entries.of_columns(
        [4, 0, 2], [30, 8, 0], [1, 13, 3], [TOKENS, NOTHING, TOKENS]
    )
    assert entries.rows.tolist() == [4, 0, 2]
    assert entries.starts.tolist() == [30, 8, 0]
    assert entries.lengths.tolist() == [1, 13, 3]
    assert entries.wants_tokens.tolist() == [True, False, True]
    with pytest.raises(AssertionError, match="one length"):
        Entries.of_columns([1, 2], [0], [1, 1], [TOKENS, TOKENS])
    with pytest.raises(ValueError, match="read-only"):
        entries.rows[0] = 1


def test_a_plan_without_entries() -> None:
    assert list(NO_ENTRIES) == [] and len(NO_ENTRIES) == 0
    assert Plan(0, NO_ENTRIES, 0).num_tokens == 0
    assert Entries.of([]) == Entries.of_columns([], [], [], []) == NO_ENTRIES


def test_a_plan_survives_the_wire() -> None:
    plan = Plan(3, Entries.of(ENTRIES), 1, released=[7])
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
    assert found == plan and found.num_tokens == 17
