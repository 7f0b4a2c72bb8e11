"""Tracks KV block fetches across processes, each of which fetches its own shard of a block.

In: plans, and what each process says of its own fetches. Out: fetches that have ended everywhere.
Only then is a slot filled, or free for another content; a fetch that failed in one process has
failed. What a process says of fetches from before a reset counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jengine.plan import Transfers


class FetchTally:
    """Fetches still in progress in at least one process."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = frozenset(ranks)
        self._missing: dict[int, set[int]] = {}  # number -> processes in which it has not ended
        self._failed: set[int] = set()
        self._ended: dict[int, bool] = {}  # everywhere, and not taken yet

    @property
    def is_waiting(self) -> bool:
        return bool(self._missing)

    def began(self, transfers: Transfers) -> None:
        """Note the fetches of a plan that every process runs; a reset forgets earlier ones."""
        if transfers.reset:
            self._missing.clear()
            self._failed.clear()
            self._ended.clear()
        for fetch in transfers.fetches:
            self._missing[fetch.number] = set(self._ranks)

    def ended(self, rank: int, done: Mapping[int, bool]) -> None:
        """Note that process `rank` has completed fetches: number → success."""
        for number, succeeded in done.items():
            missing = self._missing.get(number)
            if missing is None:
                continue  # it began before a reset
            missing.discard(rank)
            if not succeeded:
                self._failed.add(number)
            if not missing:
                del self._missing[number]
                self._ended[number] = number not in self._failed
                self._failed.discard(number)

    def take(self) -> dict[int, bool]:
        """Return, since the last call, the fetches that all processes have completed: number →
        whether all succeeded."""
        ended, self._ended = self._ended, {}
        return ended
