"""The cores of an engine: starts those of this host, connects to those of others. No jax.

In: a Deployment. Out: clients of starting cores, or addresses where other processes reach them.
`core_process` is the cores' program.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from jengine.assembly.processes.core_shares import Share, shares
from jengine.assembly.processes.deployment import Deployment
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.launch import launch
from jengine.engine.process.mailbox import Mailbox
from jengine.wire.doors import Door

CORE_PROGRAM = "jengine.assembly.processes.core_process"


def launch_cores(
    deployment: Deployment, mailbox: Mailbox | None = None, door: Door | None = None
) -> list[ProcessClient]:
    """Start this host's cores: one, or one per data-parallel rank. They load concurrently.

    With a mailbox their clients share it; a door admits fronts of other hosts.
    """
    args = deployment.args
    if not args.replicas_in_processes:
        return [launch(CORE_PROGRAM, deployment.core(), mailbox=mailbox, door=door)]
    local, clients = args.ranks.local, []
    divided: list[Share] = []
    if local:
        divided = shares(len(local), args.devices_per_replica, os.environ)
    try:
        for rank, share in zip(local, divided, strict=True):
            settings = deployment.core(rank)
            clients.append(launch(CORE_PROGRAM, settings, share.cpus, share.env, mailbox, door))
    except BaseException:
        shut_down(clients)
        raise
    return clients


def clients_of(
    addresses: Sequence[str], mailbox: Mailbox, secret: bytes | None
) -> list[ProcessClient]:
    """Clients of running cores, on this or other hosts."""
    return [
        ProcessClient(address, None, mailbox, secret if address.startswith("tcp:") else None)
        for address in addresses
    ]


def shut_down(clients: Sequence[ProcessClient]) -> None:
    """Shut down the cores that this process started, and disconnect from the others."""
    for client in clients:
        client.shutdown()
