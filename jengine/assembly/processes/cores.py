"""The cores of an engine: starts those of this host, and finds those of other hosts. No jax.

In: EngineArgs. Out: clients of cores that are starting, or addresses where other processes reach
them. `core_process` is the cores' program.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from jengine.assembly.processes.core_settings import CoreSettings
from jengine.assembly.processes.core_shares import Share, shares
from jengine.assembly.processes.rank_settings import rank_settings
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.plain_settings import plain_settings
from jengine.assembly.settings.setting import CORE
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.launch import launch
from jengine.engine.process.mailbox import Mailbox
from jengine.wire.curve import checked_secret
from jengine.wire.hosts import Door

CORE_PROGRAM = "jengine.assembly.processes.core_process"
WHERE = "an engine core in a process of its own"
SECRET = "data_parallel_secret (JENGINE_DATA_PARALLEL_SECRET)"  # noqa: S105 - where it is given


def launch_cores(
    args: EngineArgs, folder: Path, mailbox: Mailbox | None = None, door: Door | None = None
) -> list[ProcessClient]:
    """Start this host's cores: one, or one for each data-parallel rank. They load together.

    With a mailbox their clients share it; a door lets fronts of other hosts in.
    """
    if not args.replicas_in_processes:
        return [launch(CORE_PROGRAM, core_settings(args, folder), mailbox=mailbox, door=door)]
    clients: list[ProcessClient] = []
    try:
        for rank, share in zip(args.ranks.local, _local_shares(args), strict=True):
            settings = replica_settings(args, folder, rank)
            clients.append(launch(CORE_PROGRAM, settings, share.cpus, share.env, mailbox, door))
    except BaseException:
        shut_down(clients)
        raise
    return clients


def _local_shares(args: EngineArgs) -> list[Share]:
    cores = len(args.ranks.local)
    return shares(cores, args.devices_per_replica, os.environ) if cores else []


def secret_of(args: EngineArgs) -> bytes:
    """What the hosts of one engine share."""
    return checked_secret(SECRET, args.data_parallel_secret)


def clients_of(
    addresses: Sequence[str], mailbox: Mailbox, secret: bytes | None
) -> list[ProcessClient]:
    """Clients of cores that others have started, on this host or on others."""
    return [
        ProcessClient(address, None, mailbox, secret if address.startswith("tcp:") else None)
        for address in addresses
    ]


def shut_down(clients: Sequence[ProcessClient]) -> None:
    """End the cores that belong to this process, and leave the others."""
    for client in clients:
        client.shutdown()


def replica_settings(args: EngineArgs, folder: Path, rank: int) -> bytes:
    """The settings of the core of one data-parallel rank."""
    return core_settings(args, folder, tells_contents=True, **rank_settings(args, rank))


def core_settings(
    args: EngineArgs, folder: Path, *, tells_contents: bool = False, **changed: Any
) -> bytes:
    """The settings that the core's program takes."""
    plain = plain_settings(
        args, WHERE, CORE,
        **{"model": str(folder), "skip_tokenizer_init": True, **changed},
    )  # fmt: skip
    return msgspec.msgpack.encode(CoreSettings(plain, tells_contents))
