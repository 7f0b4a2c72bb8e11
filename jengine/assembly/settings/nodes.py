"""The nodes of one engine, by vLLM's four settings. No jax.

In: the settings. Out: this node's rank and the address of the rendezvous, or a ConfigError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.multihost.settings import NO_ADDRESS


class Nodes(NamedTuple):
    """The nodes of one engine: their number, this node's rank, and node 0's address."""

    count: int
    rank: int
    address: str  # of node 0
    port: int  # on node 0

    @property
    def several(self) -> bool:
        return self.count > 1

    @property
    def coordinator(self) -> str:
        """host:port of `jax.distributed`'s coordinator on node 0."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    def check(self, executor: str) -> None:
        """Raise ConfigError for inconsistent node settings."""
        whole_number("nnodes", self.count, range(1, 2**31))
        whole_number("node_rank", self.rank, range(self.count))
        whole_number("master_port", self.port, range(1, 2**16))
        if self.address in NO_ADDRESS:
            raise ConfigError(
                f"master_addr={self.address!r}: expected one address of node 0, not all of a host."
            )
        if self.several and executor not in ("auto", "multihost"):
            raise ConfigError(
                f"nnodes={self.count} with executor={executor!r}: that executor has processes of "
                "its own. Leave one of them out."
            )

    def joined_replicas(self, replicas: int, address: str | None) -> dict[str, Any]:
        """Settings that make this node's replicas data-parallel ranks that join node 0's. Empty if
        nodes share a replica, or for a single node."""
        local = self.local_replicas(replicas)
        if not self.several or local is None:
            return {}
        return {
            "data_parallel_size_local": local,
            "data_parallel_start_rank": self.rank * local,
            "data_parallel_address": address or self.address,
            "nnodes": 1,
            "node_rank": 0,
        }

    def local_replicas(self, replicas: int) -> int | None:
        """Replicas per node; None if a single replica spans all nodes."""
        if replicas == 1:
            return None
        if replicas % self.count:
            raise UnsupportedFeature(
                f"nnodes={self.count} with data_parallel_size={replicas}: replicas that run on "
                "several nodes each are not built yet. Give a data_parallel_size that nnodes "
                "divides, or 1."
            )
        return replicas // self.count


def whole_number(name: str, value: object, allowed: range) -> None:
    """Raise ConfigError unless a setting is an integer in this range."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise ConfigError(
            f"{name}={value!r}: expected a number from {allowed.start} to {allowed.stop - 1}."
        )
