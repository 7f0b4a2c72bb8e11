"""How much of the machine compiling in the background takes while steps run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jengine.runner.programs import background
from jengine.runner.programs.background import RESTS, BackgroundWarmUp
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.variants.buckets import Slots
from jengine.runner.variants.features import Features
from jengine.runner.variants.program_list import Key

KEYS: list[Key] = [(Slots(count), Features()) for count in (2, 4, 8)]
RUNNING: Key = (Slots(16), Features())
SECONDS = 2.0  # that a compile takes
CORES = 2


class Machine:
    """A replica whose compiler takes two seconds of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Machine], None]):
        self.now = 0.0
        self.meanwhile = meanwhile
        self.begun: list[tuple[float, Key]] = []
        self.ledger = CompileLedger({RUNNING: LedgerEntry(*RUNNING, 0.0, 0, 0)})
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        monkeypatch.setattr(background, "time", clock)
        monkeypatch.setattr(background.os, "cpu_count", lambda: CORES)
        monkeypatch.setattr(background, "lower_priority", lambda: None)
        monkeypatch.setattr(background, "compile_in_turn", self.compile)
        self.warm_up = BackgroundWarmUp([self], KEYS)  # pyrefly: ignore[bad-argument-type]
        monkeypatch.setattr(self.warm_up._stopped, "wait", self.doze)
        self.warm_up._run()

    def compile(self, owners: Any, key: Key) -> list[Any]:
        self.begun.append((self.now, key))
        self.doze(SECONDS)
        return []

    def doze(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self)

    def expect_later(self, keys: list[Key]) -> None:
        self.ledger.expect(keys)

    def tell(self) -> None:
        pass

    def run_a_step(self) -> None:
        self.ledger.entries[RUNNING].hits += 1

    @property
    def times(self) -> list[float]:
        return [began for began, _ in self.begun]


def test_programs_follow_each_other_while_no_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, lambda machine: None)
    assert machine.begun == [(0, KEYS[0]), (2, KEYS[1]), (4, KEYS[2])]


def test_a_compile_is_followed_by_rests_while_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, Machine.run_a_step)
    period = SECONDS * (1 + RESTS / CORES)
    assert machine.times == pytest.approx([0, period, 2 * period], rel=0.02)
    assert machine.now == pytest.approx(2 * period + SECONDS, rel=0.02)  # no rest at the end


def test_it_goes_on_when_steps_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(machine: Machine) -> None:
        if machine.now <= SECONDS + 1:
            machine.run_a_step()

    # One rest in which steps ended, and one without any.
    assert Machine(monkeypatch, run).times == pytest.approx([0, 6, 8], rel=0.02)


def test_what_is_asked_for_is_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(machine: Machine) -> None:
        machine.run_a_step()
        if machine.now > 3:
            machine.ledger.note_asked(KEYS[2])

    first, second, _ = Machine(monkeypatch, run).begun
    assert first == (0, KEYS[0]) and second[1] == KEYS[2]
    assert second[0] == pytest.approx(3, abs=2 * background.DOZE)


def test_it_does_not_rest_while_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(machine: Machine) -> None:
        machine.run_a_step()
        machine.warm_up._hurried.set()

    assert Machine(monkeypatch, run).times == [0, 2, 4]
