"""Data-parallel cores of this host that serve a front on another host. No jax.

In: a Deployment, with the front's address. Out: why they have ended. Must not know requests.
"""

from __future__ import annotations

import logging
import queue
import threading

import jengine
from jengine.assembly.processes.deployment import Deployment
from jengine.assembly.processes.engine_process import shown
from jengine.assembly.processes.own_cores import OwnCores
from jengine.distributed.joining import JoinedHost
from jengine.engine.process.startup import START_SECONDS
from jengine.errors import EngineDead, JengineError
from jengine.wire.doors import Door, checked_host, own_address, tcp

logger = logging.getLogger(__name__)
# Why the cores end; None while they run.
Ends = queue.SimpleQueue[str | None]


def run_joined(deployment: Deployment, ends: Ends) -> str | None:
    """Run this host's cores for the front until they end. Returns an error message, or None after a
    normal shutdown."""
    cores = OwnCores(deployment)
    over = threading.Event()  # set once the end of cores is expected
    threading.Thread(target=join, args=(deployment, cores, ends, over), daemon=True).start()
    why = ends.get()
    over.set()
    if why is None:
        logger.info("Shutting down.")
    else:
        logger.critical("The cores end: %s", why)
    cores.shutdown()
    return why


def join(deployment: Deployment, cores: OwnCores, ends: Ends, over: threading.Event) -> None:
    """Start the cores, and register them with the front."""
    args = deployment.args
    try:
        host = checked_host("data_parallel_address", args.data_parallel_address or "")
        port = args.data_parallel_rpc_port
        secret, tell = deployment.secret, shown(args.show_progress)
        cores.launch(Door(tcp(own_address(host, port), 0), secret))
        ready = cores.wait_until_ready(tell)
        addresses = {
            rank: one.door or "" for rank, one in zip(args.ranks.local, ready, strict=True)
        }
        watch(cores, ends, over)
        front = JoinedHost(Door(tcp(host, port), secret), ends.put)
        front.join(addresses, jengine.__version__, START_SECONDS)
    except JengineError as error:
        ends.put(" ".join(str(error).split()))
    except Exception as error:
        logger.error("The cores could not join", exc_info=error)
        ends.put(f"{type(error).__name__}: {error}")
    else:
        logger.info("Ranks %s have joined %s.", list(addresses), front.address)


def watch(cores: OwnCores, ends: Ends, over: threading.Event) -> None:
    """End when every core has died. The front continues without dead ones."""

    def lost(error: EngineDead) -> None:
        if over.is_set():
            return
        logger.error("A core has died: %s", error)
        if not any(core.is_alive for core in cores.clients):
            ends.put(str(error))

    for core in cores.clients:
        core.when_dead(lost)
