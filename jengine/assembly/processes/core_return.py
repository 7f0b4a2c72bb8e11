"""Reconnects restarted data-parallel cores of other hosts, in place of the dead ones. No jax.

In: a rank and its core's address. Out: the core receives requests again, or the log says why not.
Waits for cores in a separate thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from jengine.assembly.processes.cores import clients_of
from jengine.assembly.processes.replica_checks import check_replicas
from jengine.distributed.process_replicas import ProcessReplicas
from jengine.engine.process.client import START_SECONDS
from jengine.errors import EngineDead, JengineError

logger = logging.getLogger(__name__)
# Seconds between polls of the addresses.
LOOK = 1.0


class CoreReturn:
    def __init__(self, replicas: ProcessReplicas, secret: bytes) -> None:
        self._replicas = replicas
        self._secret = secret

    def take(self, rank: int, address: str) -> None:
        """Start to connect to a restarted core at this address. Does not block."""
        work = partial(self._take, rank, address)
        threading.Thread(target=work, name="jengine-return", daemon=True).start()

    def follow(self, addresses: Sequence[str], read: Callable[[], Sequence[str]]) -> None:
        """Poll the addresses of all ranks while the engine lives, and connect to cores that have
        moved."""
        work = partial(self._follow, list(addresses), read)
        threading.Thread(target=work, name="jengine-return", daemon=True).start()

    def _follow(self, addresses: list[str], read: Callable[[], Sequence[str]]) -> None:
        while self._is_wanted:
            time.sleep(LOOK)
            try:
                found = list(read())
            except FileNotFoundError:
                return  # the server is shutting down
            for rank, address in enumerate(found):
                if address != addresses[rank]:
                    self._take(rank, address)
            addresses = found

    @property
    def _is_wanted(self) -> bool:
        try:
            self._replicas.check_alive()
        except EngineDead:
            return False
        return True

    def _take(self, rank: int, address: str) -> None:
        (client,) = clients_of([address], self._replicas.mailbox, self._secret)
        first = self._replicas.cores[0]
        try:
            ready = client.wait_until_ready(seconds=START_SECONDS)
            check_replicas([first, client], [first.wait_until_ready(), ready])
            self._replicas.replace(rank, client)
        except JengineError as error:
            client.shutdown()
            logger.error("Data-parallel rank %d cannot come back: %s", rank, error)
        else:
            logger.info("Data-parallel rank %d is back, at %s.", rank, address)
