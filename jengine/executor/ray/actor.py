"""The Ray actor: runs one program of jengine, bytes in and bytes out. No jax."""

from __future__ import annotations

import importlib
import os
import socket

import msgspec
from ray.util import get_node_ip_address


class ActorAddress(msgspec.Struct, frozen=True):
    """Host, address and a free port of an actor."""

    host: str
    process: int
    port: int  # was free when asked, for jax.distributed's coordinator


class Worker:
    """One engine process, which ends with its actor."""

    def where(self) -> bytes:
        address = get_node_ip_address()
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        return msgspec.msgpack.encode(ActorAddress(address, os.getpid(), port))

    def run(self, program: str, job: bytes) -> bytes:
        """Run `package.module:function` of this jengine installation to its end."""
        module, _, name = program.partition(":")
        return getattr(importlib.import_module(module), name)(job)
