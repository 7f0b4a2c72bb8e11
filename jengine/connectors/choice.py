"""Makes the two halves of the connector that settings name.

In: TransferSettings and the namespace of the model. Out: a half for the scheduler, one for the
worker, each in the process that needs it. A class of a user's, `package.module:Class`, has the
class methods `scheduler_half(extra, namespace)` and `worker_half(extra, namespace)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from jengine.connectors.folder import FolderIndex, FolderStore
from jengine.connectors.peers import PeerIndex, PeerStore
from jengine.connectors.protocol import SchedulerHalf, WorkerHalf
from jengine.connectors.settings import TransferSettings
from jengine.errors import ConfigError

WHOLE = ("",)  # the pieces of a block of which each process has all


def scheduler_half(
    settings: TransferSettings, namespace: str, pieces: Sequence[str] = WHOLE
) -> SchedulerHalf | None:
    """What the scheduler asks; None: there is the host's memory alone. `pieces` name those of a
    block that processes keep."""
    if settings.folder is not None:
        return FolderIndex(settings.folder.path, namespace, pieces)
    if settings.peer is not None:
        return PeerIndex(settings.peer)
    if settings.module is not None:
        return loaded_class(settings.module).scheduler_half(settings.extra, namespace)
    return None


def worker_half(
    settings: TransferSettings, namespace: str, pieces: Sequence[str] = WHOLE, own: str = ""
) -> WorkerHalf | None:
    """What the worker reads from and writes to; None: there is the host's memory alone. This
    process keeps its `own` of the pieces."""
    if settings.folder is not None:
        folder = settings.folder
        # Each piece has its share of the limit, and is counted by those who store it.
        most = None if folder.most_bytes is None else folder.most_bytes // len(pieces)
        return FolderStore(folder.path, namespace + own, most)
    if settings.peer is not None:
        return PeerStore(settings.peer, namespace)
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
