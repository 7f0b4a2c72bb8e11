"""Main function of a core process, which ends with the process that started it.

In: a job on standard input. Out: a server for fronts. Must not know how an engine is built.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

import msgspec

from jengine.confined.bootstrap import end_with
from jengine.engine.process.core_server import CoreServer, Served
from jengine.engine.process.launch import CoreJob
from jengine.engine.process.to_front import LogRecord
from jengine.errors import JengineError

# Builds an engine from its settings, reporting progress to the server.
Build = Callable[[bytes, CoreServer], Served]


class LogForwarder(logging.Handler):
    """Log handler that sends records to the fronts, which apply the user's handlers and formats."""

    def __init__(self, server: CoreServer) -> None:
        super().__init__()
        self._server = server

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        self._server.log(
            LogRecord(
                record.name, record.levelno, text,
                record.pathname, record.lineno, record.created, os.getpid(),
            )
        )  # fmt: skip


def run_core(build: Build) -> None:
    """Build the engine, serve until a front shuts it down, and exit the process."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CoreJob)
    belong_to(job.parent)
    if job.cpus:
        os.sched_setaffinity(0, job.cpus)
    server = CoreServer(job.address, job.door)
    logger = logging.getLogger("jengine")
    logger.addHandler(LogForwarder(server))
    logger.setLevel(logging.DEBUG)  # the fronts decide
    logger.propagate = False
    leave(_serve(server, build, job.settings))


def _serve(server: CoreServer, build: Build, settings: bytes) -> int:
    """Build and serve. Returns the exit status."""
    try:
        served = build(settings, server)
    except BaseException as error:  # noqa: BLE001 - the fronts raise it
        if not isinstance(error, JengineError):
            traceback.print_exc()
        server.refuse(error)
        return 1
    gc.collect()
    gc.freeze()  # exclude loaded objects, which stay, from later collections
    try:
        server.serve(served)
    except BaseException:  # noqa: BLE001 - the fronts were told
        traceback.print_exc()
        return 1
    served.client.shutdown()
    return 0


def belong_to(parent: int) -> None:
    """Die with the parent, and leave terminal signals to it."""
    end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def leave(status: int) -> None:
    """Exit without joining threads that still wait for a step."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
