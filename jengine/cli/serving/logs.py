"""Log format of a server, as known from vLLM."""

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
    """Log jengine from INFO to stderr, with process, time and place."""
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
    """Set this process's name on its own records; those forwarded from a core have one."""
    if record.process == os.getpid():
        record.processName = name
    return True
