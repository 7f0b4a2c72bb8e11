"""An actor with an engine: what it takes of a Ray cluster, and its metrics.

In: a config of Ray Data or Ray Serve; an engine. Out: options of the actor; its address for other
engines; gauges of the engine's numbers, as counters and buckets are whole numbers already, which
reach Prometheus by Ray's agents.
"""

from __future__ import annotations

import socket
from typing import Any

import ray
from ray.util.metrics import Gauge

from jengine.api.metrics import exporter_of
from jengine.assembly.engine import Engine
from jengine.connectors.settings import PEER, USUAL_PORT, is_whole
from jengine.errors import ConfigError

MOST_PORTS = 1000  # that replicas on one node may have before there is a free one


def resources(config: Any) -> dict[str, Any]:
    """Options of the actor: what the placement group says, all bundles together, else a GPU for
    each of the engine's devices where the cluster has GPUs."""
    devices = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        devices *= config.engine_kwargs.get(name, 1)
    placement = config.placement_group_config
    taken: dict[str, Any] = {}
    if config.accelerator_type:
        taken["accelerator_type"] = config.accelerator_type
    if placement is None:
        has_gpus = config.accelerator_type or ray.cluster_resources().get("GPU", 0)
        return {**taken, "num_gpus": devices} if has_gpus else taken
    one = placement.get("bundle_per_worker")
    bundles = placement.get("bundles") or [one] * devices
    sums = {name: sum(each.get(name, 0) for each in bundles) for each in bundles for name in each}
    for name, flag in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        if total := sums.pop(name, 0):
            taken[flag] = total
    return {**taken, "resources": sums} if sums else taken


def own_blocks_address(given: dict[str, Any], rank: int, ports: int) -> dict[str, Any]:
    """`kv_transfer_config` with an address of this replica alone, since all replicas share one
    config: its node, and the first of `ports` consecutive free ports from `kv_port` on. `rank`: the
    replica's index on its node, so that replicas that start together probe different ports."""
    base = given.get("kv_port", USUAL_PORT)
    if given.get("kv_connector") != PEER or not is_whole(base):  # which the engine refuses
        return given
    host = given.get("kv_ip") or ray.util.get_node_ip_address()
    for first in range(base + rank * ports, base + MOST_PORTS, ports):
        if all(is_free(host, port) for port in range(first, first + ports)):
            return {**given, "kv_ip": host, "kv_port": first}
    raise ConfigError(f"kv_port={base}: no port of {host} up to {base + MOST_PORTS} is free.")


def is_free(host: str, port: int) -> bool:
    """Whether a TCP port can be listened at."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True


class RayMetrics:
    def __init__(self, engine: Engine) -> None:
        self._exporter = exporter_of(engine)
        self._gauges: dict[str, Gauge] = {}

    def publish(self) -> None:
        """Hand the numbers as they are now to Ray."""
        for family in self._exporter.collect():
            for sample in family.samples:
                name = sample.name.replace(":", "_")
                if name not in self._gauges:
                    self._gauges[name] = Gauge(name, family.documentation, tuple(sample.labels))
                self._gauges[name].set(sample.value, tags=dict(sample.labels))
