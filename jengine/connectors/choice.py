"""Builds the two halves of the configured KV connector.

In: TransferSettings and the namespace of the model. Out: the scheduler half or the worker half,
each in the process that needs it. A user's class, `package.module:Class`, has the class methods
`scheduler_half(extra, namespace)` and `worker_half(extra, namespace)`; for a mesh of several
processes also `scheduler_half_of_pieces(extra, namespace, pieces)` and `worker_half_of_piece(extra,
namespace, piece, process)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jengine.config import WHOLE_BLOCKS
from jengine.connectors.folder import FolderIndex, FolderStore
from jengine.connectors.peers import PeerIndex, PeerStore
from jengine.connectors.protocol import SchedulerHalf, WorkerHalf
from jengine.connectors.settings import TransferSettings
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.import_paths import imported

HALVES = ("scheduler_half", "worker_half")
# Class methods of connectors that support meshes, where each process stores its shard of a block.
PIECE_HALVES = ("scheduler_half_of_pieces", "worker_half_of_piece")


def scheduler_half(
    settings: TransferSettings, namespace: str, pieces: Sequence[str] = WHOLE_BLOCKS
) -> SchedulerHalf | None:
    """Make the connector's scheduler half; None without a connector (host memory only). `pieces`:
    name of each process's shard of a block."""
    if settings.folder is not None:
        return FolderIndex(settings.folder.path, namespace, pieces)
    if settings.peer is not None:
        return PeerIndex(settings.peer, pieces)
    if settings.module is not None:
        users = loaded_class(settings.module)
        if len(pieces) > 1:
            return users.scheduler_half_of_pieces(settings.extra, namespace, pieces)
        return users.scheduler_half(settings.extra, namespace)
    return None


def worker_half(
    settings: TransferSettings,
    namespace: str,
    pieces: Sequence[str] = WHOLE_BLOCKS,
    process: int = 0,
) -> WorkerHalf | None:
    """Make this process's worker half, which stores the shard `pieces[process]`; None without a
    connector."""
    own, shares = pieces[process], len(set(pieces))  # a byte limit is divided among the shards
    if settings.folder is not None:
        folder = settings.folder
        most = None if folder.most_bytes is None else folder.most_bytes // shares
        return FolderStore(folder.path, namespace + own, most)
    if settings.peer is not None:
        peer = settings.peer.of_process(process)
        return PeerStore(replace(peer, most_bytes=peer.most_bytes // shares), namespace, own)
    if settings.module is not None:
        users = loaded_class(settings.module)
        if len(pieces) > 1:
            return users.worker_half_of_piece(settings.extra, namespace, own, process)
        return users.worker_half(settings.extra, namespace)
    return None


def loaded_class(name: str) -> Any:
    """Import the class `package.module:Class`."""
    found = imported("kv_connector", name)
    missing = missing_of(found, HALVES)
    if missing:
        raise ConfigError(f"the connector {name} lacks the class methods {', '.join(missing)}.")
    return found


def refuse_without_pieces(name: str, processes: Sequence[int]) -> None:
    """Raise UnsupportedFeature if a user's connector does not support meshes of several
    processes."""
    missing = missing_of(loaded_class(name), PIECE_HALVES)
    if missing:
        raise UnsupportedFeature(
            f"kv_connector {name} with devices of processes {tuple(processes)}: each of them has a "
            f"piece of a block, and the class lacks the class methods {', '.join(missing)}. Add "
            "them (examples/nixl_connector.py has both), or use SharedStorageConnector, "
            "ZmqConnector or kv_offloading_size."
        )


def missing_of(found: Any, halves: Sequence[str]) -> list[str]:
    """The class methods that the user's connector lacks."""
    return [half for half in halves if not callable(getattr(found, half, None))]
