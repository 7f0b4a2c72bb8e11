"""Scheduler gate: holds back only those requests whose programs are still being compiled.

Applies where warm-up has not compiled a program yet, or cannot, as for user callbacks: a thread
compiles it while other requests run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from weakref import WeakMethod

from jengine.errors import RequestError
from jengine.request import RUNNING, Request
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.needed_features import needed_by
from jengine.runner.programs.late import LatePrograms
from jengine.runner.variants.features import Features
from jengine.runner.variants.program_list import Key
from jengine.scheduler.gates import MakeGate, Wake
from jengine.scheduler.queue import Polled


class ProgramsOf(NamedTuple):
    """Key of a wait: all programs with these features."""

    features: Features


class ProgramsReady:
    """Holds a request until its programs are compiled, alone and batched with the running ones. A
    request whose program fails to compile ends with that error.

    If the features needed depend on the running requests, the scheduler polls; else the end of a
    compile wakes the request.
    """

    def __init__(self, loaded: LoadedModel, late: LatePrograms, wake: Wake) -> None:
        self._loaded = loaded
        self._late = late
        self._wake = wake
        self._awaited: set[ProgramsOf] = set()
        # Running requests with callbacks of their own, and the features that they need.
        self._passed: dict[Request, Features] = {}
        self._ready: set[Features] = set()
        tell = WeakMethod(self._tell)  # so that an abandoned engine is freed at once
        loaded.programs.tell = lambda: (told := tell()) and told()

    def awaited(self, request: Request) -> Hashable | None:
        loaded = self._loaded
        own = needed_by(request.wire, loaded.vocab_size, loaded.taps, loaded.processors)
        if own in self._ready:
            return None
        needed = self._beside_others(own) if own.own_functions else own
        key = ProgramsOf(needed)
        self._awaited.add(key)  # before the check below: a compile may end in between
        lacking = loaded.programs.lacking(needed)
        if lacking:
            self._begin(lacking)
            return key if needed == own else Polled(key)
        self._awaited.discard(key)
        if own.own_functions:
            self._passed[request] = own
        else:
            self._ready.add(own)  # compiled programs stay
        return None

    def _tell(self) -> None:
        for key in tuple(self._awaited):
            self._awaited.discard(key)
            self._wake(key)

    def _beside_others(self, own: Features) -> Features:
        """`own` plus the callbacks of all running requests, which may be batched together in a
        later step even if they were not in the last one (only the last prefill chunk samples)."""
        self._passed = {one: its for one, its in self._passed.items() if one.status is RUNNING}
        every = (*self._passed.values(), own)
        processors = {one.number: one for each in every for one in each.sampling.processors}
        taps = {one.number: one for each in every for one in each.taps}
        sampling = replace(own.sampling, processors=tuple(processors.values()))
        return replace(own, sampling=sampling, taps=tuple(taps.values()))

    def _begin(self, lacking: list[Key]) -> None:
        ledger = self._loaded.programs.ledger
        for key in lacking:
            if (error := self._late.failures.get(key)) is not None:
                raise RequestError(
                    f"this request's program, {key[0]} with features {key[1]}, could not be "
                    f"compiled: {type(error).__name__}: {error}"
                )
            ledger.note_asked(key)
        background = self._loaded.background
        self._late.ask(key for key in lacking if background is None or not background.compiles(key))


def program_gates(loaded: LoadedModel) -> tuple[MakeGate, ...]:
    """The gate of one replica, or none where steps block on compilation instead."""
    late = loaded.late
    return () if late is None else (partial(ProgramsReady, loaded, late),)
