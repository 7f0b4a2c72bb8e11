"""Rendezvous of the processes of one JAX program, through JAX's coordination service.

In: the processes of a mesh. Out: this process's end of their channel. The leader publishes its
listening address, and a random secret unless the user set one. It listens on that address only.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax._src import distributed  # the coordination service has no public name

from jengine.errors import ConfigError
from jengine.executor.multihost.agreement import listed, plural
from jengine.executor.multihost.channel import Channel, FollowerChannel, LeaderChannel
from jengine.executor.multihost.settings import MultihostSettings
from jengine.wire.connection import Connection, Listener, connect
from jengine.wire.doors import Door, listening, new_secret, own_address, tcp

logger = logging.getLogger(__name__)
VARIABLE = "JENGINE_DATA_PARALLEL_SECRET"
# Engines created so far by the same processes: each needs a distinct key.
_numbers: dict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


def meet(processes: Sequence[int], settings: MultihostSettings) -> Channel:
    """Connect to the other processes and return this one's channel; the first process leads."""
    rank, leader = jax.process_index(), processes[0]
    client = distributed.global_state.client
    if client is None:
        raise ConfigError(
            f"the mesh has devices of processes {listed(list(processes))}, but jax.distributed is "
            "not initialised here. Call jax.distributed.initialize() in every process first."
        )
    name = "-".join(map(str, processes))
    key = f"jengine/{name}/{next(_numbers[tuple(processes)])}"
    if rank == leader:
        return LeaderChannel(rank, *_gather(client, key, processes, settings), settings)
    connection, host = _find(client, key, rank, leader, settings)
    return FollowerChannel(rank, leader, connection, host, settings)


def _gather(
    client: Any, key: str, processes: Sequence[int], settings: MultihostSettings
) -> tuple[dict[int, Connection], dict[int, str]]:
    """Publish the listening address and wait for all processes. Returns their connections and host
    names, by rank."""
    address = settings.address or address_towards(distributed.global_state.coordinator_address)
    secret = new_secret() if settings.secret is None else settings.secret
    ends = time.monotonic() + settings.meet
    found: dict[int, Connection] = {}
    hosts: dict[int, str] = {}
    with listening(
        f"cannot listen on {address}",
        "Give an address of this host with multihost={'address': ...}.",
    ):
        listener = Listener(Door(tcp(address, 0), secret.encode()), settings.silence)
    with listener:
        where = {"address": listener.door.address, "host": socket.gethostname()}
        if settings.secret is None:
            warn_of_strangers(address)
            where["secret"] = secret
        client.key_value_set(key, json.dumps(where))
        try:
            while missing := [rank for rank in processes[1:] if rank not in found]:
                try:
                    rank, connection = listener.accept(ends - time.monotonic())
                except TimeoutError as error:
                    raise ConfigError(
                        f"{plural(missing)} {listed(missing)} did not begin this engine within "
                        f"{settings.meet:g} s. Every process must make it, in the same order."
                    ) from error
                if rank not in missing:
                    connection.close()
                    continue
                found[rank] = connection
                hosts[rank] = client.key_value_try_get(f"{key}/host/{rank}")
        finally:
            client.key_value_delete(key)  # deletes the keys below it too
    return found, hosts


def _find(
    client: Any, key: str, rank: int, leader: int, settings: MultihostSettings
) -> tuple[Connection, str]:
    """Connect to the published address. Returns the connection and the leader's host name."""
    client.key_value_set(f"{key}/host/{rank}", socket.gethostname())
    try:
        where = json.loads(client.blocking_key_value_get(key, int(settings.meet * 1000)))
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(
            f"process {leader} did not begin this engine within {settings.meet:g} s. Every process "
            "must make it, in the same order."
        ) from error
    secret = where.get("secret") if settings.secret is None else settings.secret
    if secret is None:
        raise ConfigError(
            f"process {leader} has a secret, and this one, {rank}, has none. Set {VARIABLE}, or "
            "data_parallel_secret, to the same in every process."
        )
    door = Door(where["address"], secret.encode())
    try:
        return connect(door, rank, settings.silence), where["host"]
    except OSError as error:
        host, port = door.place
        raise ConfigError(
            f"cannot reach process {leader} at {host}:{port} ({error}). Give another address of "
            "its host with multihost={'address': ...}, or open its ports to this host."
        ) from error


def warn_of_strangers(address: str) -> None:
    """Warn unless the address is loopback: anyone who reaches JAX's coordination service can read a
    secret that the leader generated."""
    if not ipaddress.ip_address(address.split("%")[0]).is_loopback:
        logger.warning(
            "The secret of the processes of this engine is told through JAX's coordination "
            "service, which answers whoever reaches it. Set %s in all of them to keep it.",
            VARIABLE,
        )


def address_towards(coordinator: str | None) -> str:
    """The local address that routes to JAX's coordinator."""
    host, _, port = (coordinator or "127.0.0.1:1").rpartition(":")
    return own_address(host.strip("[]"), int(port))
