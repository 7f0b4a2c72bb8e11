"""`jengine serve --headless`: data-parallel cores for a front on another host, and no API.

In: settings of the engine. Out: the exit status: 0 after a signal, 1 if the cores cannot join, have
all died, or the front has gone.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jengine
from jengine.assembly.args import EngineArgs
from jengine.assembly.cores import secret_of
from jengine.assembly.engine_process import model_folder, shown
from jengine.assembly.own_cores import OwnCores
from jengine.distributed.joining import JoinedHost
from jengine.engine.process.beginning import START_SECONDS
from jengine.engine.process.network import Door, checked_host, own_address
from jengine.errors import ConfigError, EngineDead, JengineError

logger = logging.getLogger(__name__)
# Why the process ends; None: a signal came.
Ends = queue.SimpleQueue[str | None]


def serve_cores(args: EngineArgs) -> int:
    """Run this host's cores until the end."""
    if not args.ranks.elsewhere or not args.ranks.local:
        raise ConfigError(
            f"--headless with ranks {list(args.ranks.local)} of {args.ranks.size}: expected some "
            "ranks here and some on other hosts. Give --data-parallel-size, "
            "--data-parallel-size-local and --data-parallel-start-rank."
        )
    cores, ends = OwnCores(args, model_folder(args)), Ends()
    threading.Thread(target=join, args=(args, cores, ends), daemon=True).start()
    with signals_as(ends):
        why = ends.get()
    if why is None:
        logger.info("Shutting down.")
    else:
        logger.critical("The cores end: %s", why)
    cores.shutdown()
    return 0 if why is None else 1


def join(args: EngineArgs, cores: OwnCores, ends: Ends) -> None:
    """Start the cores, and offer them to the front."""
    try:
        host = checked_host("data_parallel_address", args.data_parallel_address or "")
        port = args.data_parallel_rpc_port
        secret, tell = secret_of(args), shown(args.show_progress)
        cores.launch(Door(own_address(host, port), secret))
        ready = cores.wait_until_ready(tell)
        addresses = {
            rank: one.door or "" for rank, one in zip(args.ranks.local, ready, strict=True)
        }
        watch(cores, ends)
        front = JoinedHost(host, port, secret, ends.put)
        front.join(addresses, jengine.__version__, START_SECONDS)
    except JengineError as error:
        ends.put(" ".join(str(error).split()))
    except Exception as error:
        logger.error("The cores could not join", exc_info=error)
        ends.put(f"{type(error).__name__}: {error}")
    else:
        logger.info("Ranks %s have joined %s.", list(addresses), front.address)


def watch(cores: OwnCores, ends: Ends) -> None:
    """End when every core has died; the front goes on without those that have."""

    def lost(error: EngineDead) -> None:
        logger.error("A core has died: %s", error)
        if not any(core.is_alive for core in cores.clients):
            ends.put(str(error))

    for core in cores.clients:
        core.when_dead(lost)


@contextmanager
def signals_as(ends: Ends) -> Iterator[None]:
    """Take SIGTERM and Ctrl-C as the end."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: ends.put(None)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
