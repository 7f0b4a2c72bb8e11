"""Rendezvous of an engine's nodes, after which JAX sees the devices of all.

In: settings. Out: nothing, or a ConfigError. Must not know what the engine runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

from jengine.assembly.settings.nodes import Nodes
from jengine.assembly.settings.parallel_args import ParallelSettings
from jengine.errors import ConfigError
from jengine.executor.multihost.ending import end_process
from jengine.executor.multihost.settings import Direction, MultihostSettings

logger = logging.getLogger(__name__)
# JAX aborts the process at its own timeout, which is this much later than ours.
ABORT_SECONDS = 60
ADVICE = (
    "Start jengine serve on every node, with the same nnodes, master_addr and master_port, and "
    "--node-rank 0 at that address."
)


def join_nodes(asked: ParallelSettings, direction: Direction | None) -> None:
    """Initialise `jax.distributed` if the engine spans several nodes. Must precede JAX's first use
    of a device."""
    nodes = asked.nodes
    if not nodes.several:
        return
    if direction is None:
        raise ConfigError(
            f"nnodes={nodes.count} in a process with requests of its own: give multiprocess=True "
            "to AsyncLLM or use `jengine serve`, and run `jengine serve --headless` on the other "
            "nodes. Or start the same program on every node after jax.distributed.initialize()."
        )
    logger.info("Node %d of %d meets the others at %s.", nodes.rank, nodes.count, nodes.coordinator)
    seconds = MultihostSettings.checked(asked.multihost).meet
    with given_up_after(seconds, nodes, direction):
        try:
            jax.distributed.initialize(
                nodes.coordinator, nodes.count, nodes.rank,
                initialization_timeout=int(seconds + ABORT_SECONDS),
                coordinator_bind_address=nodes.coordinator,
            )  # fmt: skip
        except (RuntimeError, ValueError, OSError) as error:  # JAX raises RuntimeErrors
            said = " ".join(str(error).split())
            raise ConfigError(f"{problem(nodes)}: {said:.300}. {ADVICE}") from error


@contextmanager
def given_up_after(seconds: float, nodes: Nodes, direction: Direction) -> Iterator[None]:
    """End this process, with the reason, if the block takes longer."""

    def give_up() -> None:
        reason = f"{problem(nodes)} within {seconds:g} s. {ADVICE}"
        for tell in direction.observers:
            tell(reason)
        end_process(reason)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def problem(nodes: Nodes) -> str:
    return f"node {nodes.rank} of {nodes.count} did not meet the others at {nodes.coordinator}"


def check_nodes(asked: ParallelSettings, processes: Sequence[int]) -> None:
    """Raise ConfigError if the mesh has no device of some node."""
    nodes = asked.nodes
    idle = sorted(set(range(nodes.count)) - set(processes))
    if nodes.several and idle:
        raise ConfigError(
            f"nnodes={nodes.count}, but none of the {asked.devices_per_replica} devices that the "
            f"model is split over is of node {', '.join(map(str, idle))}. Give fewer nodes, or a "
            "tensor_parallel_size or pipeline_parallel_size that takes the devices of all."
        )
