"""Calls all living engine cores and merges their answers.

In: a call. Out: each core's answer, or the merged one. Cores that die meanwhile are left out. Must
not know how requests are placed, or what happens to those of a dead core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from jengine.counts import Counts, together
from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.replica_state import CoreReport, whole_health, whole_state
from jengine.distributed.router import Router
from jengine.engine.core_state import CoreState
from jengine.engine.process.client import ProcessClient
from jengine.engine.questions import AskHealth, AskStats, CallWorkers, CoreQuestion, Pause
from jengine.errors import EngineDead, RequestError
from jengine.executor.calls import DropAdapter, decoded_answers
from jengine.grammar.shared_tokenizer import TokenizerData

A = TypeVar("A")


class CoreQuestions:
    """Calls one core after the other and merges their answers."""

    def __init__(
        self, roster: CoreRoster, router: Router, tokenizer: TokenizerData | None = None
    ) -> None:
        self._roster, self._router = roster, router
        self._tokenizer = tokenizer  # as sent to the cores
        self._repeated = RepeatedCalls()

    def ask(self, question: CoreQuestion[A]) -> A:
        """Call every living core; returns the merged answer."""
        answers = self._asked(question)
        whole = self._whole(question, answers)
        self._repeated.note(question, whole)
        return whole

    def _whole(self, question: CoreQuestion[Any], answers: dict[int, Any]) -> Any:
        match question:
            case AskStats():
                return self._counts(answers)
            case AskHealth():
                return whole_health(self._parts(), answers)
            case _:
                return question.together(answers.values())

    def _asked(self, question: CoreQuestion[Any]) -> dict[int, Any]:
        roster = self._roster
        answers = {}
        for index, core in [(i, roster.cores[i]) for i in roster.living]:
            try:
                answers[index] = core.ask(question)
            except EngineDead:
                if core.is_alive:
                    raise
        roster.check_alive()
        return answers

    def make_alike(self, core: ProcessClient) -> None:
        """Send a new core the current tokenizer, pause and adapters."""
        if self._tokenizer is not None:
            core.tell_tokenizer(self._tokenizer)
        if self.state().paused:
            core.ask(Pause())
        self._repeated.repeat(core.ask)

    def _counts(self, found: Mapping[int, Counts]) -> Counts:
        """Merge counters over all cores; those of retired cores are included."""
        retired = self._roster.retired
        return together(
            [found.get(one.index) or retired.get(one.index) or one.counts for one in self._parts()]
        )

    def state(self) -> CoreState:
        """Last reported state, merged: the oldest age, the longest running step."""
        return whole_state(self._parts())

    def _parts(self) -> list[CoreReport]:
        roster = self._roster
        return [
            CoreReport(
                index,
                core.state(),
                self._router.counts[index],
                roster.dead.get(index),
                index in roster.retired,
            )
            for index, core in enumerate(roster.cores)
        ]


class RepeatedCalls:
    """Remembers adapters that were added and not dropped since."""

    def __init__(self) -> None:
        self._added: list[tuple[str, bytes]] = []  # digest, and encoded arguments of the call
        self._lock = threading.Lock()

    def note(self, question: CoreQuestion[Any], answers: Any) -> None:
        if not isinstance(question, CallWorkers):
            return
        method, arguments = question.method, question.arguments
        if method == "add_adapter" and answers:
            with suppress(RequestError), self._lock:  # the caller gets the error
                (report, *_) = decoded_answers(method, answers)
                self._added.append((report.digest, arguments))
        elif method == "drop_adapter":
            dropped = msgspec.msgpack.decode(arguments, type=DropAdapter).digest
            with self._lock:
                last = next((one for one in self._added if one[0] == dropped), None)
                if last is not None:
                    self._added.remove(last)

    def repeat(self, ask: Callable[[CallWorkers], object]) -> None:
        """Replay the remembered calls to a new core."""
        with self._lock:
            added = list(self._added)
        for _, arguments in added:
            ask(CallWorkers("add_adapter", arguments))
