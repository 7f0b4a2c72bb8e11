"""The engine cores and their states: living, leaving, dead or retired.

Must not know requests, or how cores are started.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from jengine.counts import Counts
from jengine.engine.process.client import ProcessClient
from jengine.errors import EngineDead


class CoreRoster:
    """The cores, indexed by data-parallel rank.

    Hold `lock` to change it. The same lock guards the router, so that a core and its requests are
    lost atomically.
    """

    def __init__(self, cores: Sequence[ProcessClient]) -> None:
        self.lock = threading.Lock()
        self.cores = list(cores)
        self.dead: dict[int, EngineDead] = {}  # by index, in order of death
        self.leaving: set[int] = set()  # draining
        # Final counts of retired cores, which are also in `dead`.
        self.retired: dict[int, Counts] = {}

    @property
    def living(self) -> list[int]:
        """Indices of cores that have not died."""
        return [i for i in range(len(self.cores)) if i not in self.dead]

    @property
    def serving(self) -> list[int]:
        return [i for i in self.living if i not in self.leaving]

    @property
    def next_place(self) -> int:
        """Rank of the next core: that of a dead one if any, else the number of cores."""
        return min(self.dead, default=len(self.cores))

    def put(self, index: int, core: ProcessClient) -> None:
        """Put a core in the place of a dead one."""
        self.cores[index] = core
        self.dead.pop(index, None)
        self.retired.pop(index, None)

    def is_expected_dead(self, index: int, core: ProcessClient) -> bool:
        """Whether this core was retired or has been replaced."""
        return self.cores[index] is not core or index in self.retired

    def check_alive(self) -> None:
        """Raise EngineDead if no core lives."""
        self.cores[0].check_process()
        if not self.living:
            first = next(iter(self.dead.values()))
            raise EngineDead(str(first)) from first
