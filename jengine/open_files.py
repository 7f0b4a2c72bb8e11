"""The limit of open files, which a process with many connections must raise."""

from __future__ import annotations

import resource

# That a process has open, besides its connections.
OTHER_FILES = 64


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files towards what `count` connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
