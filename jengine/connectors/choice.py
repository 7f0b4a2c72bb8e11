"""Makes the two halves of the connector that settings name.

In: TransferSettings and the namespace of the model. Out: a half for the scheduler, one for the
worker, each in the process that needs it. A class of a user's, `package.module:Class`, has the
class methods `scheduler_half(extra, namespace)` and `worker_half(extra, namespace)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from jengine.config import WHOLE_BLOCKS
from jengine.connectors.folder import FolderIndex, FolderStore
from jengine.connectors.peers import PeerIndex, PeerStore
from jengine.connectors.protocol import SchedulerHalf, WorkerHalf
from jengine.connectors.settings import TransferSettings
from jengine.errors import ConfigError


def scheduler_half(
    settings: TransferSettings, namespace: str, pieces: Sequence[str] = WHOLE_BLOCKS
) -> SchedulerHalf | None:
    """What the scheduler asks; None: there is the host's memory alone. `pieces` name what each
    process has of a block."""
    if settings.folder is not None:
        return FolderIndex(settings.folder.path, namespace, pieces)
    if settings.peer is not None:
        return PeerIndex(settings.peer, pieces)
    if settings.module is not None:
        return loaded_class(settings.module).scheduler_half(settings.extra, namespace)
    return None


def worker_half(
    settings: TransferSettings,
    namespace: str,
    pieces: Sequence[str] = WHOLE_BLOCKS,
    process: int = 0,
) -> WorkerHalf | None:
    """What the worker reads from and writes to; None: there is the host's memory alone. This
    process has that one of the pieces."""
    own, shares = pieces[process], len(set(pieces))  # each piece has its share of a limit
    if settings.folder is not None:
        folder = settings.folder
        most = None if folder.most_bytes is None else folder.most_bytes // shares
        return FolderStore(folder.path, namespace + own, most)
    if settings.peer is not None:
        peer = settings.peer.of_process(process)
        return PeerStore(replace(peer, most_bytes=peer.most_bytes // shares), namespace, own)
    if settings.module is not None:
        return loaded_class(settings.module).worker_half(settings.extra, namespace)
    return None


def loaded_class(name: str) -> Any:
    """The class of a name like package.module:Class."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the connector {name} cannot be imported: {error}.") from error
    missing = [half for half in ("scheduler_half", "worker_half") if half not in dir(found)]
    if missing:
        raise ConfigError(f"the connector {name} lacks the class methods {', '.join(missing)}.")
    return found
