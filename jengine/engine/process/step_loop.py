"""Runs an engine's steps in one thread while there is work; can pause between steps.

In: the core's client. Out: deltas, to a callback that must not block. Must not know sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from jengine.counts import Counts
from jengine.engine.client import EngineClient
from jengine.engine.core_state import CoreState
from jengine.engine.questions import AskStats, CoreQuestion
from jengine.errors import UnexpectedCompile
from jengine.outputs import TokenDelta

A = TypeVar("A")
# Seconds between updates of the core's counts while steps run.
COUNT_EVERY = 0.1


class StepLoop:
    """`run` belongs to one thread; other methods are thread-safe."""

    def __init__(
        self,
        client: EngineClient,
        deliver: Callable[[list[TokenDelta]], None],
        failed: Callable[[UnexpectedCompile], None],
        note: Callable[[], None],
    ) -> None:
        """`note` is called after each step and each wait."""
        self._client = client
        self._deliver = deliver
        self._failed = failed
        self._note = note
        self._counts = Counts()
        self._counted = time.monotonic()
        self._steps = 0
        self._began: float | None = None  # when the step in progress began
        self._paused = False
        self._gate = threading.Lock()  # held during a step
        self._changed = threading.Event()  # there may be work

    def run(self, ended: threading.Event) -> None:
        """Run steps until `ended`, which is checked after `wake`. Raises what ends the engine."""
        while not ended.is_set():
            self._changed.clear()
            with self._gate:
                ran = not self._paused and self._client.has_work
                if ran:
                    self._step()
            if not ran or time.monotonic() - self._counted > COUNT_EVERY:
                self._count()
            self._note()
            if not ran:
                self._changed.wait()

    def wake(self) -> None:
        """Signal that there may be work."""
        self._changed.set()

    def ask(self, question: CoreQuestion[A]) -> A:
        """Answer a question, and pause or resume steps as its `runs_steps` says."""
        if question.runs_steps is False:
            return self._rest(question)
        answer = self._client.ask(question)
        if question.runs_steps:
            self._paused = False
            self.wake()
        return answer

    def _rest(self, question: CoreQuestion[A]) -> A:
        """Pause: wait for the step in progress, answer, then deliver its last deltas."""
        self._paused = True
        with self._gate:
            answer = self._client.ask(question)
            if deltas := self._client.outputs(wait=False):
                self._deliver(deltas)
        self.wake()
        return answer

    def state(self, dropped_frames: int = 0) -> CoreState:
        """Current state of the core; never waits."""
        began, now = self._began, time.monotonic()
        return CoreState(
            counts=self._counts.later(now - self._counted),
            steps=self._steps,
            stepping=0.0 if began is None else now - began,
            compiling=began is not None and self._client.is_compiling,
            paused=self._paused,
            dropped_frames=dropped_frames,
        )

    def _step(self) -> None:
        self._began = time.monotonic()
        try:
            deltas = self._client.outputs()
        except UnexpectedCompile as error:
            self._failed(error)
        else:
            if deltas:
                self._deliver(deltas)
        finally:
            self._began = None
            self._steps += 1

    def _count(self) -> None:
        self._counts = self._client.ask(AskStats())
        self._counted = time.monotonic()
