"""Raises the limit of open files, for processes with many connections."""

from __future__ import annotations

import resource

# Open files of a process besides its connections.
OTHER_FILES = 64


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files, as far as allowed, for `count` connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
