"""Ends a command's process quickly, with output flushed.

A normal exit joins background compilation and frees every object of jax, torch and transformers,
which takes seconds.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jengine import LLM
    from jengine.cli.main import OpenLLM

# Python's own exit status for output that could not be written.
OUTPUT_LOST = 120
# Executors that run steps in this process only.
IN_PROCESS = ("auto", "local")


@contextmanager
def engine_to_the_end(open_llm: OpenLLM, model: str, settings: Mapping[str, Any]) -> Iterator[LLM]:
    """An engine for the rest of a command.

    An in-process engine is not shut down, which would wait for background compilation; one with
    worker processes is.
    """
    llm = open_llm(model, **settings)
    try:
        yield llm
    finally:
        if settings.get("executor", "auto") not in IN_PROCESS:
            llm.shutdown()


def leave(status: int) -> NoReturn:
    """Flush and exit without joining threads or freeing memory."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass  # the reader has closed the pipe
        except OSError:
            status = status or OUTPUT_LOST
    logging.shutdown()
    if threading.active_count() > 1 and "jax" in sys.modules:
        # Wait for threads that write compile cache entries: a truncated file would stay there.
        importlib.import_module("jengine.runner.disk.compile_cache").wait_for_writes()
    os._exit(status)
