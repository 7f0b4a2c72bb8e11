"""`jengine serve --headless`: data-parallel cores for a front end on another host, without an API.

In: engine settings. Out: exit status: 0 after a signal, 1 if cores cannot join or have all died, or
the front end is gone.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from jengine.assembly.processes.deployment import deployment_of
from jengine.assembly.processes.joined_cores import Ends, run_joined
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError


def serve_cores(args: EngineArgs) -> int:
    """Run this host's cores until the end."""
    if not args.ranks.elsewhere or not args.ranks.local:
        raise ConfigError(
            f"--headless with ranks {list(args.ranks.local)} of {args.ranks.size}: expected some "
            "ranks here and some on other hosts. Give --data-parallel-size, "
            "--data-parallel-size-local and --data-parallel-start-rank."
        )
    ends = Ends()
    with signals_as(ends):
        why = run_joined(deployment_of(args), ends)
    return 0 if why is None else 1


@contextmanager
def signals_as(ends: Ends) -> Iterator[None]:
    """Context in which SIGTERM and Ctrl-C end the cores."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: ends.put(None)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
