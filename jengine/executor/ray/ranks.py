"""Data-parallel ranks on Ray: the program that joins the cluster and starts an actor per rank.

    python -m jengine.executor.ray.ranks

In: a RanksJob on standard input. Out: a line per ended rank, on the file that the job names. An
ended rank is restarted a few times and reconnects to the front. A separate process, because Ray
takes over the signals of the process that joins it. Requests never pass through it: ranks connect
to the front.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from jengine.errors import EngineDead, JengineError
from jengine.executor.ray.executor import Cluster
from jengine.executor.ray.options import RayOptions
from jengine.executor.ray.ranks_job import RanksJob
from jengine.executor.remote.job import Ended

# Seconds between checks for ended ranks and for signals.
LOOK = 0.5
# Seconds before the first, second ... restart of a rank in a row.
DELAYS = (1.0, 10.0, 60.0)
# A rank that ran this many seconds gets its restarts anew.
SETTLED = 600.0


def main() -> int:
    """Run the ranks until a signal arrives or all have ended."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RanksJob)
    with os.fdopen(job.report, "wb", buffering=0) as file:

        def report(error: JengineError) -> None:
            file.write(msgspec.json.encode(Ended(type(error).__name__, str(error))) + b"\n")

        try:
            run(job, report)
        except JengineError as error:
            report(error)
            return 1
    return 0


def run(job: RanksJob, report: Callable[[JengineError], None]) -> None:
    """Start the ranks and report each one that ends."""
    ranks = len(job.jobs)
    cluster = Cluster(replace(RayOptions.checked(job.options), workers=ranks))
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())  # replaces Ray's handler
    try:
        cluster.place(ranks * job.devices)
        cluster.begin(job.program, job.jobs)
        again = Restarts(ranks)
        while (again.running or again.due) and not told_to_end.wait(0 if again.running else LOOK):
            for rank, error in cluster.ended(again.running, LOOK).items():
                report(again.noted(rank, error or EngineDead(f"rank {rank} has ended")))
            for rank in again.taken():
                cluster.begin_again(rank, job.program, job.jobs[rank])
    finally:
        cluster.stop()


class Restarts:
    """Which ranks run, and when each ended rank restarts."""

    def __init__(self, ranks: int) -> None:
        now = time.monotonic()
        self.running = list(range(ranks))
        self.due: dict[int, float] = {}  # rank -> time of its restart
        self._began = [now] * ranks
        self._tries = [0] * ranks  # in a row

    def noted(self, rank: int, error: JengineError) -> JengineError:
        """Record that a rank ended. Returns its error, with a note on its restart."""
        self.running.remove(rank)
        now = time.monotonic()
        if now - self._began[rank] >= SETTLED:
            self._tries[rank] = 0
        tries = self._tries[rank]
        if not isinstance(error, EngineDead):  # building failed, and would again
            return error
        if tries == len(DELAYS):
            return EngineDead(f"{error} It was started {tries + 1} times, and is given up.")
        self._tries[rank] = tries + 1
        self.due[rank] = now + DELAYS[tries]
        return EngineDead(f"{error} It is started again in {DELAYS[tries]:g} s.")

    def taken(self) -> list[int]:
        """Ranks to restart now; they count as running."""
        now = time.monotonic()
        ranks = [rank for rank, when in self.due.items() if when <= now]
        for rank in ranks:
            del self.due[rank]
            self._began[rank] = now
        self.running += ranks
        return ranks


if __name__ == "__main__":
    sys.exit(main())
