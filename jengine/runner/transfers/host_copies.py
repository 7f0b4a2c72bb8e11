"""Threads that fill host-memory slots with KV blocks, from the devices or a connector.

In: blocks being copied from the devices, blocks to fetch. Out: filled slots, and the fetches that
have ended. One thread writes slots, in the order of plans, so that older contents never overwrite
newer ones; others wait for the connector.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from jax import Array

from jengine.connectors.protocol import WorkerHalf
from jengine.plan import BlockCopies, Fetch
from jengine.runner.transfers.host_memory import HostMemory
from sharding.jax_settings import engine_context

logger = logging.getLogger(__name__)
READERS = 8
# Bytes that may wait to be written through the connector; further blocks are not written.
MOST_UNWRITTEN = 512 * 2**20
UNWRITTEN = "A block of the KV cache could not be written out; it is not kept."
UNREAD = "A block of the KV cache could not be fetched; it is computed again."
NO_BLOCK = "What a connector has brought is no block of the KV cache; it is computed again."
# Seconds in which a problem is logged at most once.
SILENCE = 60.0


class HostCopies:
    """Host-memory slots of all cache groups, and reads and writes through the connector."""

    def __init__(self, memories: Sequence[HostMemory], far: WorkerHalf | None) -> None:
        self._memories = memories
        self._far = far
        self._slots = ThreadPoolExecutor(1, "kv-slots")
        self._readers = ThreadPoolExecutor(READERS, "kv-read") if far else None
        self._writer = ThreadPoolExecutor(1, "kv-write") if far else None
        self._saving: dict[tuple[int, int], Future[None]] = {}
        self._epoch = 0
        self._fetching: set[tuple[int, int]] = set()  # epoch and number
        self._ended: dict[int, bool] = {}
        self._changed = threading.Condition()
        self._unwritten = 0
        self._silent_until: dict[str, float] = {}  # by problem
        self.dropped = 0  # blocks not written through the connector, as too many waited

    def save(self, copies: BlockCopies, arrays: Sequence[Array]) -> None:
        """Fill slots with these blocks once they arrive, and write them through the connector; does
        not block."""
        future = self._slots.submit(self._keep, copies, arrays)
        for slot in copies.slots:
            self._saving[copies.group, slot] = future

    def num_slots(self, group: int, most: int) -> int:
        """Number of slots of a group, at most `most`."""
        return min(self._memories[group].num_slots, most)

    def keep(self, group: int, slots: Sequence[int], arrays: Sequence[Array]) -> None:
        """Fill slots synchronously."""
        self._memories[group].keep(slots, arrays)

    def wait_for(self, group: int, slots: Sequence[int]) -> None:
        """Wait until these slots are filled. Raises if filling one failed."""
        for slot in slots:
            future = self._saving.pop((group, slot), None)
            if future is not None:
                future.result()

    def staged(self, group: int, slots: Sequence[int]) -> tuple[Array, ...]:
        """Contents of filled slots, staged for transfer to the devices."""
        return self._memories[group].staged(slots)

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        """Start fetching blocks from the connector into slots."""
        if not fetches:
            return
        assert self._readers is not None, "a plan fetches, and there is no connector"
        with self._changed:
            self._fetching.update((self._epoch, fetch.number) for fetch in fetches)
        for begin in range(min(READERS, len(fetches))):  # fetches split over threads
            self._readers.submit(self._read, fetches[begin::READERS], self._epoch)

    def ended(self, wait: float = 0.0) -> dict[int, bool]:
        """Whether each fetch that ended since the last call succeeded, by number. Waits up to
        `wait` seconds for those in progress."""
        if not (self._fetching or self._ended):
            return {}
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: not self._fetching, wait)
            ended, self._ended = self._ended, {}
        return ended

    def reset(self) -> None:
        """Forget fetches in progress, since their slots will be reused; wait for saves."""
        with self._changed:
            self._epoch += 1
            self._fetching.clear()
            self._ended.clear()
        for slot in list(self._saving):
            self._saving.pop(slot).result()

    def tidy(self) -> None:
        """Drop bookkeeping of completed saves. Raises if one failed."""
        for slot in [slot for slot, future in self._saving.items() if future.done()]:
            self._saving.pop(slot).result()

    def close(self) -> None:
        """Finish pending stores, drop pending fetches, and end the threads."""
        self._slots.shutdown()
        for pool in (self._readers, self._writer):
            if pool is not None:
                pool.shutdown(cancel_futures=pool is self._readers)
        if self._far is not None:
            self._far.close()

    @engine_context()
    def _keep(self, copies: BlockCopies, arrays: Sequence[Array]) -> None:
        memory = self._memories[copies.group]
        memory.keep(copies.slots, arrays)
        if self._far is None or self._writer is None:
            return
        for slot, key in zip(copies.slots, copies.keys, strict=False):
            data = memory.piece(slot)
            with self._changed:
                if self._unwritten + len(data) > MOST_UNWRITTEN:
                    self.dropped += 1
                    continue
                self._unwritten += len(data)
            self._writer.submit(self._write, key, data)

    def _write(self, key: bytes, data: bytes) -> None:
        assert self._far is not None
        try:
            self._far.write(key, data)
        except Exception:
            if self._is_news(UNWRITTEN):
                logger.exception(UNWRITTEN)
        finally:
            with self._changed:
                self._unwritten -= len(data)

    def _read(self, fetches: Sequence[Fetch], epoch: int) -> None:
        assert self._far is not None
        found: list[tuple[Fetch, bytes | memoryview | None]] = []
        for fetch in fetches:
            data = None
            try:
                data = self._far.read(fetch.key, fetch.source)
            except Exception:
                if self._is_news(UNREAD):
                    logger.exception(UNREAD)
            found.append((fetch, data))
        self._slots.submit(self._fill, found, epoch)

    def _is_news(self, problem: str) -> bool:
        """Whether to log a problem now: once in SILENCE seconds, since a full disk fails every
        block."""
        now = time.monotonic()
        with self._changed:
            is_news = now >= self._silent_until.get(problem, now)
            if is_news:
                self._silent_until[problem] = now + SILENCE
        return is_news

    def _put(self, fetch: Fetch, data: bytes | memoryview | None) -> bool:
        """Write a fetched block to its slot; False if its bytes do not fit."""
        try:
            return data is not None and self._memories[fetch.group].put(fetch.slot, data)
        except Exception:  # a user's connector may return anything
            if self._is_news(NO_BLOCK):
                logger.exception(NO_BLOCK)
            return False

    @engine_context()
    def _fill(self, found: Sequence[tuple[Fetch, bytes | memoryview | None]], epoch: int) -> None:
        """Fill slots with fetched blocks, unless a reset came since."""
        with self._changed:
            if epoch != self._epoch:
                return
        ended = {fetch.number: self._put(fetch, data) for fetch, data in found}
        with self._changed:
            if epoch == self._epoch:
                self._fetching.difference_update((epoch, number) for number in ended)
                self._ended.update(ended)
                self._changed.notify_all()
