"""Re-emits a core's log records through this process's handlers."""

from __future__ import annotations

import logging

from jengine.engine.process.to_front import LogRecord

# The name of a core's process in log records, as vLLM's users know it.
CORE_NAME = "EngineCore"


def log(told: LogRecord) -> None:
    """Emit a core's log record; `processName` distinguishes it from this process's."""
    found = logging.getLogger(told.name)
    if found.isEnabledFor(told.level):
        record = found.makeRecord(
            told.name, told.level, told.path, told.line, "%s", (told.text,), None
        )
        record.created, record.process, record.processName = told.created, told.process, CORE_NAME
        found.handle(record)
