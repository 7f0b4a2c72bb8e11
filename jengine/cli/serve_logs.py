"""Log lines of a server, in the form that users of vLLM search for."""

from __future__ import annotations

import logging
import os

FORMAT = "(APIServer pid={pid}) %(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
TIMES = "%m-%d %H:%M:%S"


def configure_server_logs(uvicorn_level: str, *, debug: bool) -> None:
    """Log jengine from INFO on to stderr, each line with its process, time and place."""
    formatter = logging.Formatter(FORMAT.format(pid=os.getpid()), TIMES)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        handler.setFormatter(formatter)
    logging.getLogger("jengine").setLevel(logging.DEBUG if debug else logging.INFO)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(uvicorn_level.upper())
