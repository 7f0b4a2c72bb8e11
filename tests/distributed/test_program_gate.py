"""The gate of programs, before programs that only say what they lack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jengine.distributed import program_gate
from jengine.distributed.program_gate import ProgramsOf, ProgramsReady
from jengine.request import RUNNING, Request
from jengine.runner.variants.features import Features
from jengine.sampling.features import SamplingFeatures
from jengine.sampling.processor_sets import ProcessorSet
from jengine.scheduler.queue import Polled
from tests.scheduler.scheduler_loop import make_wire

OWN = {
    str(number): Features(SamplingFeatures(processors=(ProcessorSet(number, (abs,)),)))
    for number in (1, 2)
}


class Fake:
    """Programs, and the thread that compiles them."""

    def __init__(self) -> None:
        self.failures: dict[Any, Exception] = {}
        self.asked: list[Any] = []
        self.compiled: set[Features] = set()
        self.ledger = SimpleNamespace(note_asked=lambda key: None)
        self.tell = lambda: None
        self.last_needed = Features()  # of a step with a chunk of a prompt, which samples nothing

    def lacking(self, needed: Features) -> list[Any]:
        return [] if needed in self.compiled else [("largest", needed)]

    def ask(self, keys: Any) -> None:
        self.asked += keys


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> tuple[ProgramsReady, Fake, list[Any]]:
    monkeypatch.setattr(program_gate, "needed_by", lambda wire, *sets: OWN[wire.request_id])
    fake, woken = Fake(), list[Any]()
    loaded: Any = SimpleNamespace(
        programs=fake, background=None, vocab_size=9, taps=None, processors=None
    )
    return ProgramsReady(loaded, fake, woken.append), fake, woken  # type: ignore[arg-type]


def test_functions_of_all_that_run_count_and_not_those_of_the_last_step(gate: Any) -> None:
    ready, fake, _ = gate
    first, second = (Request(make_wire(4, name), 64, 0) for name in OWN)
    fake.compiled |= set(OWN.values())
    assert ready.awaited(first) is None
    first.status = RUNNING
    fake.last_needed = Features()
    awaited = ready.awaited(second)
    assert isinstance(awaited, Polled) and isinstance(awaited.what, ProgramsOf)
    both = awaited.what.features
    assert len(both.own_functions) == 2
    fake.compiled.add(both)
    assert ready.awaited(second) is None


def test_the_end_of_a_compile_wakes_who_waits_for_it_alone(gate: Any) -> None:
    ready, fake, woken = gate
    first = Request(make_wire(4, "1"), 64, 0)
    assert ready.awaited(first) == ProgramsOf(OWN["1"])
    fake.compiled.add(OWN["1"])
    fake.tell()
    assert woken == [ProgramsOf(OWN["1"])] and ready.awaited(first) is None
