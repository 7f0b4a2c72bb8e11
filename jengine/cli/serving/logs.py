"""Log lines of a server, in the form that users of vLLM search for."""

from __future__ import annotations

import logging
import os
from functools import partial

FORMAT = (
    "(%(processName)s pid=%(process)d) %(levelname)s %(asctime)s [%(filename)s:%(lineno)d] "
    "%(message)s"
)
TIMES = "%m-%d %H:%M:%S"


def configure_server_logs(
    uvicorn_level: str, *, debug: bool, process_name: str = "APIServer"
) -> None:
    """Log jengine from INFO on to stderr, each line with its process, time and place."""
    formatter = logging.Formatter(FORMAT, TIMES)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        handler.setFormatter(formatter)
        handler.addFilter(partial(with_process_name, process_name))
    logging.getLogger("jengine").setLevel(logging.DEBUG if debug else logging.INFO)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(uvicorn_level.upper())


def with_process_name(name: str, record: logging.LogRecord) -> bool:
    """Name this process in its own records; those of an engine's core have its name already."""
    if record.process == os.getpid():
        record.processName = name
    return True
