"""Adapters for a core that comes back: those that were added and not dropped."""

from __future__ import annotations

import msgspec

from jengine.adapters import AdapterReport
from jengine.distributed.core_questions import RepeatedCalls
from jengine.engine.questions import CallWorkers
from jengine.executor.calls import AddAdapter, DropAdapter, Outcome, encoded_answer

encode = msgspec.msgpack.encode


def added(calls: RepeatedCalls, folder: str, digest: str) -> bytes:
    arguments = encode(AddAdapter(folder))
    calls.note(
        CallWorkers("add_adapter", arguments), [encoded_answer(AdapterReport(digest, 8, 100, 2))]
    )
    return arguments


def repeated(calls: RepeatedCalls) -> list[tuple[str, bytes]]:
    made: list[CallWorkers] = []
    calls.repeat(made.append)
    return [(one.method, one.arguments) for one in made]


def test_what_was_added_and_not_dropped_is_added_again() -> None:
    calls = RepeatedCalls()
    first, second = added(calls, "/a", "one"), added(calls, "/b", "two")
    calls.note(CallWorkers("memory", b""), [])
    assert repeated(calls) == [("add_adapter", first), ("add_adapter", second)]
    calls.note(CallWorkers("drop_adapter", encode(DropAdapter("one"))), [encoded_answer(True)])
    calls.note(CallWorkers("drop_adapter", encode(DropAdapter("other"))), [encoded_answer(False)])
    assert repeated(calls) == [("add_adapter", second)]


def test_what_failed_is_not_repeated() -> None:
    calls = RepeatedCalls()
    calls.note(
        CallWorkers("add_adapter", encode(AddAdapter("/a"))), [encode(Outcome(b"", "no folder"))]
    )
    assert not repeated(calls)
