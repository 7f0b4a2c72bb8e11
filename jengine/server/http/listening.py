"""The server's listening socket, opened before the engine is loaded, and its URL.

In: settings. Out: a socket, or an error that says what to change.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from jengine.errors import ConfigError
from jengine.server.settings import ServerSettings

BACKLOG = 2048


def listening_socket(settings: ServerSettings) -> socket.socket:
    """Bind a socket to host and port, or to the Unix socket's path."""
    if settings.uds is not None:
        return _unix_socket(settings.uds)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise ConfigError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({error}). Choose "
            "another --port (0: any that is free), or stop what uses this one."
        ) from error
    sock.set_inheritable(False)
    return sock


def _unix_socket(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)  # left by an earlier server
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"--uds {path}: cannot listen there ({error}).") from error
    return sock


def url_of(settings: ServerSettings, sock: socket.socket) -> str:
    """The server's URL as shown to users."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host, port = sock.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
