"""Lines of a core's log, for the handlers of the process that it belongs to."""

from __future__ import annotations

import logging

from jengine.engine.process.to_front import LogRecord

# The name of a core's process in log records, as vLLM's users know it.
CORE_NAME = "EngineCore"


def log(told: LogRecord) -> None:
    """Log a line of a core. `processName` tells it from those of this process."""
    found = logging.getLogger(told.name)
    if found.isEnabledFor(told.level):
        record = found.makeRecord(
            told.name, told.level, told.path, told.line, "%s", (told.text,), None
        )
        record.created, record.process, record.processName = told.created, told.process, CORE_NAME
        found.handle(record)
