"""Settings of KV offloading and transfer: vLLM's `kv_offloading_size` and `kv_transfer_config`,
checked. No jax."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from jengine.errors import ConfigError, UnsupportedFeature, nearest_name
from jengine.wire.doors import checked_secret

GIB = 2**30
# Host memory for blocks where a connector is given without a size.
PASSING = GIB // 4
USUAL_PORT = 14579
SECRET_VARIABLE = "JENGINE_KV_SECRET"  # noqa: S105 - a name
ROLES = {
    "kv_producer": (True, False), "kv_consumer": (False, True), "kv_both": (True, True),
    "producer": (True, False), "consumer": (False, True), "both": (True, True),
}  # fmt: skip
OFFLOADING = "OffloadingConnector"
PEER = "ZmqConnector"
FOLDERS = ("SharedStorageConnector", "ExampleConnector")
KEYS = {
    "kv_connector": f"{OFFLOADING}, {PEER}, {', '.join(FOLDERS)}, or a class of the module",
    "kv_role": "kv_producer (saves), kv_consumer (loads) or kv_both",
    "engine_id": "name of this engine for the others",
    "kv_ip": f"address at which {PEER} serves other engines; of several processes that are not on "
    "one host a list, one each",
    "kv_port": "port there, of this engine alone; of several processes the first of as many",
    "kv_connector_extra_config": "settings of the connector",
    "kv_connector_module_path": "module of a connector that is not one of these",
    "kv_buffer_device": "cpu: blocks pass through the host's memory",
    "enable_permute_local_kv": "false: a block has one layout in all engines",
    "kv_load_failure_policy": "recompute: blocks that cannot be fetched are computed",
}
EXTRA_KEYS = {
    "cpu_bytes_to_use": "bytes of the host's memory",
    "eviction_policy": "lru",
    "spec_name": "CPUOffloadingSpec or TieringOffloadingSpec: which is meant is seen by the tiers",
    "secondary_tiers": "list with {'type': 'fs', 'root_dir': FOLDER, 'max_bytes': N}",
    "shared_storage_path": "folder that engines share",
    "max_bytes": "most bytes of that folder's files, or of what is kept for other engines",
    "secret": "text of at least 16 bytes that engines share",
    "peers": "list of 'host:port': the only engines that requests may name",
    "timeout_seconds": "seconds in which another engine must answer",
    "namespace": "name of the model, where the files of its folder do not tell",
}
# Keys with a single supported value, and the reason.
FIXED = {
    "kv_buffer_device": ("cpu", "blocks pass through the host's memory"),
    "enable_permute_local_kv": (False, "a block has one layout in all engines"),
    "kv_load_failure_policy": ("recompute", "what cannot be fetched is always computed"),
}
MOST_SECONDS = 3600.0  # longest timeout
MOST_GIB = 2**30  # of host memory
TIER_KEYS = ("type", "root_dir", "max_bytes")


@dataclass(frozen=True)
class FolderSettings:
    """A directory for blocks."""

    path: str
    most_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """This engine's ZMQ address for consumers, and limits for asking producers."""

    host: str
    port: int
    engine_id: str
    secret: bytes = field(repr=False)
    serves: bool
    most_bytes: int  # of blocks kept for consumers
    seconds: float  # timeout of a fetch
    peers: tuple[str, ...] = ()  # "host:port" that requests may name; empty: any
    hosts: tuple[str, ...] = ()  # of each process; empty: `host`

    def of_process(self, index: int) -> PeerSettings:
        """The settings of one process of this engine, which serves at the next port."""
        host = self.hosts[index] if self.hosts else self.host
        return replace(self, host=host, port=self.port + index)


@dataclass(frozen=True)
class TransferSettings:
    """Settings of host-memory offloading and of the connector behind it."""

    host_bytes: int
    saves: bool = True
    loads: bool = True
    folder: FolderSettings | None = None
    peer: PeerSettings | None = None
    module: str | None = None  # package.module:Class of a user's connector
    namespace: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_far(self) -> bool:
        """Whether a connector keeps blocks beyond host memory."""
        return any(one is not None for one in (self.folder, self.peer, self.module))

    def of_replica(self, replica: int, processes: int) -> TransferSettings:
        """The settings of one replica in this process, with a port for each of its processes."""
        if self.peer is None or not replica:
            return self
        peer = replace(self.peer, port=self.peer.port + replica * processes)
        return replace(self, peer=peer)


def named_engine(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The config with a generated `engine_id` if it has none."""
    if not config or config.get("engine_id"):
        return config
    return {**config, "engine_id": str(uuid.uuid4())}


def config_of_rank(config: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """The config of one data-parallel rank, with a port of its own."""
    port = config.get("kv_port", USUAL_PORT)
    name = f"{config.get('engine_id') or uuid.uuid4()}_dp{rank}"
    return {**config, "kv_port": port + rank, "engine_id": name}


def transfer_settings(
    offloading_size: float | None, backend: str, config: Mapping[str, Any] | None
) -> TransferSettings | None:
    """Combine `kv_offloading_size` and `kv_transfer_config`; None if blocks stay on the device."""
    if offloading_size is not None and not (
        is_number(offloading_size) and 0 < offloading_size < MOST_GIB
    ):
        raise ConfigError(
            f"kv_offloading_size={offloading_size!r}: expected GiB of the host's memory, above 0."
        )
    if backend != "native":
        raise UnsupportedFeature(
            f"kv_offloading_backend={backend!r}: only 'native' is built in. Connectors of other "
            "projects plug in with kv_transfer_config={'kv_connector': CLASS, "
            "'kv_connector_module_path': MODULE, ...}."
        )
    size = None if offloading_size is None else int(offloading_size * GIB)
    if not config:
        return None if size is None else TransferSettings(size)
    return configured(size, config)


def configured(size: int | None, config: Mapping[str, Any]) -> TransferSettings:
    """Parse `kv_transfer_config`. `size`: bytes of host memory for blocks."""
    known_keys("kv_transfer_config", config, KEYS)
    name, role = config.get("kv_connector"), config.get("kv_role")
    if not isinstance(role, str) or role not in ROLES:
        raise ConfigError(
            f"kv_transfer_config['kv_role']={role!r}: expected one of {', '.join(ROLES)}."
        )
    check_fixed(config)
    for key in ("kv_connector", "kv_connector_module_path", "engine_id"):
        check_text("kv_transfer_config", key, config.get(key))
    extra = config.get("kv_connector_extra_config") or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"kv_connector_extra_config={extra!r}: expected a dict.")
    check_text("kv_connector_extra_config", "namespace", extra.get("namespace"))
    saves, loads = ROLES[role]
    module = config.get("kv_connector_module_path")
    if module is None:
        known_keys("kv_connector_extra_config", extra, EXTRA_KEYS)
    folder = None if module else folder_settings(name, extra)
    policy = extra.get("eviction_policy", "lru")
    if not module and policy != "lru":
        raise UnsupportedFeature(f"eviction_policy={policy!r}: blocks leave in the order 'lru'.")
    bytes_given = extra.get("cpu_bytes_to_use")
    if bytes_given is not None and not (is_whole(bytes_given) and bytes_given > 0):
        raise ConfigError(f"cpu_bytes_to_use={bytes_given!r}: expected a number of bytes above 0.")
    if size is not None and bytes_given is not None:
        raise ConfigError("kv_offloading_size and cpu_bytes_to_use mean the same; give one.")
    size = size or bytes_given
    if size is None and name == OFFLOADING:
        raise ConfigError(
            f"{OFFLOADING}: expected kv_connector_extra_config={{'cpu_bytes_to_use': BYTES}}, or "
            "kv_offloading_size."
        )
    engine_id = config.get("engine_id") or ""
    peer = None
    if name == PEER and not module:
        peer = peer_settings(config, extra, engine_id, serves=saves)
    return TransferSettings(
        size or PASSING,
        saves,
        loads,
        folder,
        peer,
        f"{module}:{name}" if module else None,
        extra.get("namespace"),
        dict(extra),
    )


def check_fixed(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedFeature for another value of a vLLM setting that has one supported value."""
    for key, (value, why) in FIXED.items():
        if config.get(key, value) != value:
            raise UnsupportedFeature(
                f"kv_transfer_config[{key!r}]={config[key]!r}: {why}. Use {value!r}, or leave it "
                "out."
            )


def check_text(name: str, key: str, given: Any) -> None:
    """Raise ConfigError unless the value is missing or a non-empty string."""
    if given is not None and not (isinstance(given, str) and given):
        raise ConfigError(f"{name}[{key!r}]={given!r}: expected a string that is not empty.")


def is_whole(given: Any) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def is_number(given: Any) -> TypeGuard[float]:
    """Whether the value is a finite int or float."""
    return is_whole(given) or (isinstance(given, float) and math.isfinite(given))


def peer_settings(
    config: Mapping[str, Any], extra: Mapping[str, Any], engine_id: str, *, serves: bool
) -> PeerSettings:
    """Parse the settings of the peer connector. `serves`: whether this engine is a producer."""
    port, seconds = config.get("kv_port", USUAL_PORT), extra.get("timeout_seconds", 5.0)
    if not is_whole(port) or not 0 < port < 2**16:
        raise ConfigError(f"kv_port={port!r}: expected the number of a port, 1 to 65535.")
    if not is_number(seconds) or not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(
            f"timeout_seconds={seconds!r}: expected a number above 0, at most {MOST_SECONDS:g}."
        )
    peers = extra.get("peers") or ()
    if not isinstance(peers, (list, tuple)) or not all(isinstance(one, str) for one in peers):
        raise ConfigError(f"peers={peers!r}: expected a list of 'host:port'.")
    secret = extra.get("secret") or os.environ.get(SECRET_VARIABLE)
    given = config.get("kv_ip", "127.0.0.1")
    hosts = tuple(given) if isinstance(given, (list, tuple)) else ()
    if not all(isinstance(one, str) and one for one in hosts or (given,)):
        raise ConfigError(
            f"kv_ip={given!r}: expected an address, or a list with one of each process."
        )
    return PeerSettings(
        host=hosts[0] if hosts else given,
        hosts=hosts,
        port=port,
        engine_id=engine_id,
        secret=checked_secret(f"kv_connector_extra_config['secret'], or {SECRET_VARIABLE}", secret),
        serves=serves,
        most_bytes=most_bytes(extra.get("max_bytes")) or GIB,
        seconds=float(seconds),
        peers=tuple(peers),
    )


def folder_settings(name: Any, extra: Mapping[str, Any]) -> FolderSettings | None:
    """Parse the directory settings of a built-in connector; None for other connectors."""
    if name in FOLDERS:
        path = extra.get("shared_storage_path")
        if not isinstance(path, str) or not path:
            raise ConfigError(
                f"{name}: expected kv_connector_extra_config={{'shared_storage_path': FOLDER}}."
            )
        return FolderSettings(path, most_bytes(extra.get("max_bytes")))
    if name == PEER:
        return None
    known = (OFFLOADING, PEER, *FOLDERS)
    if name != OFFLOADING:
        raise UnsupportedFeature(
            f"kv_transfer_config['kv_connector']={name!r}: built in are "
            f"{', '.join(known)}.{nearest_name(str(name), known)}"
            " For another one give its class as kv_connector and its module as "
            "kv_connector_module_path."
        )
    tiers = extra.get("secondary_tiers") or []
    if not isinstance(tiers, (list, tuple)) or len(tiers) > 1:
        raise UnsupportedFeature(f"secondary_tiers={tiers!r}: expected a list of one tier.")
    for tier in tiers:
        if not isinstance(tier, Mapping) or tier.get("type") != "fs" or not tier.get("root_dir"):
            raise UnsupportedFeature(
                f"secondary_tiers={tiers!r}: expected {{'type': 'fs', 'root_dir': FOLDER}}."
            )
        known_keys("secondary_tiers", tier, TIER_KEYS)
        return FolderSettings(str(tier["root_dir"]), most_bytes(tier.get("max_bytes")))
    return None


def most_bytes(given: Any) -> int | None:
    if given is not None and not (is_whole(given) and given > 0):
        raise ConfigError(f"max_bytes={given!r}: expected a number of bytes above 0.")
    return given


def known_keys(name: str, given: Any, known: Any) -> None:
    """Raise ConfigError unless the value is a mapping with known keys."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}={given!r}: expected a dict with keys of {', '.join(known)}.")
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{name} has no key {key!r}. Known: {', '.join(known)}."
                f"{nearest_name(str(key), known)}"
            )
