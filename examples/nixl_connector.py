"""A connector of your own: blocks of the KV cache in an object store, which NIXL reads and writes.

Any library that moves bytes by name plugs in like this. A connector is one class with two class
methods, which make its two halves. The scheduler's half says what can be had and is asked between
two steps, so it answers at once. The worker's half reads and writes in threads of its own, block by
block; what it cannot read is computed again, and every block is checked here before it is used.

    export PYTHONPATH=examples
    jengine serve MODEL --kv-transfer-config '{"kv_connector": "NixlObjects",
      "kv_connector_module_path": "nixl_connector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"store": {"bucket": "kv-blocks", "scheme": "https", ...}}}'

`store` are the parameters of NIXL's backend "OBJ". For LMCache, or any other store of bytes by key,
replace `ObjectStore`: it needs no more than `has`, `get` and `put`. Needs nixl: pip install nixl.

In a mesh of several processes each has a piece of every block. The class methods `..._of_pieces`
and `..._of_piece` are for these: a worker's half per process stores its piece under the piece's
name, and a block is there once all its pieces are.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

DIGEST, LENGTH = 32, 8
HEAD = DIGEST + LENGTH
MOST_KNOWN = 100_000  # names that are known to be there, or to be missing
DONE, WAITING = "DONE", "PROC"
PAUSE = 1e-4


class ObjectStore:
    """Bytes by name in an object store, moved by a NIXL agent between it and the host's memory."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self._name = "jengine"
        self._agent = nixl_agent(self._name, nixl_agent_config(backends=[]))
        self._agent.create_backend("OBJ", dict(parameters))
        self._numbers = itertools.count(1)  # NIXL knows an object by its device number
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        with self._lock:
            (found,) = self._agent.query_memory([(0, 0, 0, name)], "OBJ", "OBJ")
        return found is not None

    def get(self, name: str, size: int) -> bytes | None:
        """The first bytes of an object; None if they cannot be read."""
        buffer = np.empty(size, np.uint8)
        return buffer.tobytes() if self._move("READ", name, buffer) else None

    def put(self, name: str, data: bytes) -> bool:
        """Write an object."""
        return self._move("WRITE", name, np.frombuffer(data, np.uint8).copy())

    def _move(self, direction: str, name: str, buffer: np.ndarray) -> bool:
        agent, there, handle = self._agent, None, None
        with self._lock:
            here = agent.register_memory([(buffer.ctypes.data, buffer.size, 0, "")], "DRAM")
        try:
            with self._lock:
                there = agent.register_memory([(0, buffer.size, next(self._numbers), name)], "OBJ")
                handle = agent.initialize_xfer(direction, here.trim(), there.trim(), self._name)
                state = agent.transfer(handle)
            while state == WAITING:
                threading.Event().wait(PAUSE)
                with self._lock:
                    state = agent.check_xfer_state(handle)
            return state == DONE
        finally:
            with self._lock:
                if handle is not None:
                    agent.release_xfer_handle(handle)
                for registered in (there, here):
                    if registered is not None:
                        agent.deregister_memory(registered)


class Index:
    """The scheduler's half. It asks the store once for each name and remembers the answer; what is
    written by this engine is known by the worker's half alone until then."""

    def __init__(self, store: ObjectStore, namespace: str, pieces: Sequence[str] = ("",)) -> None:
        self._store = store
        self._namespaces = [namespace + piece for piece in dict.fromkeys(pieces)]
        self._known: OrderedDict[bytes, bool] = OrderedDict()

    def source(self, wire: Any) -> str | None:
        """Anywhere: every request may use the store."""
        return ""

    def holds(self, key: bytes, source: str) -> bool:
        """Whether all pieces of a block are in the store."""
        if not self._known.get(key, False):  # one that is missing may come at any time
            self._known[key] = all(self._store.has(name) for name in self._names(key))
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return self._known[key]

    def lost(self, key: bytes, source: str) -> None:
        """A read has failed: ask the store again."""
        self._known.pop(key, None)

    def forget(self, key: bytes) -> None:
        """A block is not to be trusted: write over it with nothing, which no reader takes."""
        self._known.pop(key, None)
        for name in self._names(key):
            self._store.put(name, b"\0" * HEAD)

    def finished(self, wire: Any, num_tokens: int) -> Mapping[str, Any]:
        """Nothing: blocks are found by content."""
        return {}

    def reset(self) -> None:
        """Blocks of this namespace are not used any more by this engine, which finds none from now
        on: the worker's half goes on writing for the others."""
        self._known.clear()
        self._namespaces = [one + "+" for one in self._namespaces]

    def _names(self, key: bytes) -> list[str]:
        return [name_of(one, key) for one in self._namespaces]


class Blocks:
    """The worker's half."""

    def __init__(self, store: ObjectStore, namespace: str) -> None:
        self._store, self._namespace = store, namespace

    def read(self, key: bytes, source: str) -> bytes | None:
        """A block; None if it is not there, or not as it was written."""
        name = name_of(self._namespace, key)
        head = self._store.get(name, HEAD)
        size = 0 if head is None else int.from_bytes(head[DIGEST:], "little")
        whole = self._store.get(name, HEAD + size) if size else None
        if whole is None or whole[:DIGEST] != digest_of(key, whole[HEAD:]):
            return None
        return whole[HEAD:]

    def write(self, key: bytes, data: bytes) -> None:
        """Keep a block."""
        head = digest_of(key, data) + len(data).to_bytes(LENGTH, "little")
        self._store.put(name_of(self._namespace, key), head + data)

    def close(self) -> None:
        """Nothing is held."""


class NixlObjects:
    """What kv_transfer_config names. `namespace` is the model, its cache and jengine's version."""

    @classmethod
    def scheduler_half(cls, extra: Mapping[str, Any], namespace: str) -> Index:
        """Made where plans are made."""
        return Index(ObjectStore(extra["store"]), namespace)

    @classmethod
    def worker_half(cls, extra: Mapping[str, Any], namespace: str) -> Blocks:
        """Made where the device is."""
        return Blocks(ObjectStore(extra["store"]), namespace)

    @classmethod
    def scheduler_half_of_pieces(
        cls, extra: Mapping[str, Any], namespace: str, pieces: Sequence[str]
    ) -> Index:
        """The scheduler's half in a mesh whose processes have these pieces of a block."""
        return Index(ObjectStore(extra["store"]), namespace, pieces)

    @classmethod
    def worker_half_of_piece(
        cls, extra: Mapping[str, Any], namespace: str, piece: str, process: int
    ) -> Blocks:
        """The half of one process. Processes with equal pieces write the same objects."""
        return Blocks(ObjectStore(extra["store"]), namespace + piece)


def name_of(namespace: str, key: bytes) -> str:
    """The name of a block's object."""
    return f"{namespace}/{key.hex()}"


def digest_of(key: bytes, data: bytes) -> bytes:
    """The checksum of a block under its name."""
    return blake2b(key + data, digest_size=DIGEST).digest()
