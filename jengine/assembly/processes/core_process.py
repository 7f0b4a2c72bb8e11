"""The program of an engine core's process: builds the engine from its settings and serves it.

In: settings, on standard input. Out: messages to the fronts. `engine_process` starts it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

import jengine
from jengine.assembly.build import build_engine
from jengine.assembly.processes.deployment import CoreSettings
from jengine.assembly.settings.args import EngineArgs
from jengine.engine.core import EngineCore
from jengine.engine.process.child import run_core
from jengine.engine.process.core_server import CoreServer, Served
from jengine.engine.process.model_frame import ModelFrame
from jengine.engine.process.to_front import Progress, Ready
from jengine.executor.multihost.settings import Direction

# Seconds between progress reports.
REPORT = 0.1


class ReportingBar:
    """A tqdm-like bar that sends its progress to the fronts."""

    def __init__(
        self, report: Callable[[Progress], None], stage: str, total: float | None, unit: str
    ) -> None:
        self.n = 0.0
        self.total = total
        self._report = report
        self._stage = stage
        self._unit = unit
        self._began = self._sent = time.monotonic()
        self._send()

    def update(self, n: float = 1) -> None:
        """Advance by `n`."""
        self.n += n
        done = self.total is not None and self.n >= self.total
        if done or time.monotonic() - self._sent >= REPORT:
            self._send()

    def close(self) -> None:
        """Report the end of the stage."""
        self._send()

    def __enter__(self) -> ReportingBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self) -> None:
        self._sent = time.monotonic()
        seconds = self._sent - self._began
        self._report(Progress(self._stage, self.n, self.total, self._unit, seconds))


def bars(report: Callable[[Progress], None]) -> Callable[..., ReportingBar]:
    """Factory of bars that report progress."""

    def bar(*, desc: str, total: float | None = None, unit: str = "", **_: Any) -> ReportingBar:
        return ReportingBar(report, desc, total, unit)

    return bar


def build(settings: bytes, server: CoreServer) -> Served:
    """Build the engine from its settings, and the Ready message for its fronts."""
    given = msgspec.msgpack.decode(settings, type=CoreSettings)
    args = EngineArgs.checked("engine core", **given.engine)
    direction = Direction([server.end_with]) if args.nodes.several else None
    engine = build_engine(args, bars(server.report), direction, server.tokenizer)
    ready = Ready(
        process=os.getpid(),
        model=ModelFrame.of(engine.model),
        folder=str(engine.folder),
        schedule=engine.schedule,
        cache=engine.cache,
        platform=engine.platform,
        version=jengine.__version__,
    )
    core = engine.in_process.core
    tells = given.tells_contents and isinstance(core, EngineCore)
    return Served(engine.client, ready, core.scheduler.cache.listeners.record() if tells else None)


if __name__ == "__main__":
    run_core(build)
