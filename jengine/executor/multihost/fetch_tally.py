"""Which fetches have ended in every process, each of which fetches its piece of a block.

In: plans, and what each process says of its own fetches. Out: fetches that have ended everywhere.
Only then is a slot filled, or free for another content; a fetch that failed in one process has
failed. What a process says of fetches from before a reset counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jengine.plan import Transfers


class FetchTally:
    """The fetches that have not ended in all of these processes."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = frozenset(ranks)
        self._missing: dict[int, set[int]] = {}  # number -> processes in which it has not ended
        self._failed: set[int] = set()
        self._ended: dict[int, bool] = {}  # everywhere, and not taken yet

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch has not ended in some process."""
        return bool(self._missing)

    def began(self, transfers: Transfers) -> None:
        """A plan with these transfers runs in every process."""
        if transfers.reset:
            self._missing.clear()
            self._failed.clear()
            self._ended.clear()
        for fetch in transfers.fetches:
            self._missing[fetch.number] = set(self._ranks)

    def ended(self, rank: int, done: Mapping[int, bool]) -> None:
        """In this process these fetches have ended, and so."""
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
        """The fetches that have ended everywhere since the last call, and whether they succeeded
        everywhere."""
        ended, self._ended = self._ended, {}
        return ended
