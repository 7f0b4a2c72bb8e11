"""Runs inside a Ray actor: a program of jengine, bytes in and bytes out. No jax."""

from __future__ import annotations

import importlib
import os
import socket

import msgspec
from ray.util import get_node_ip_address


class Where(msgspec.Struct, frozen=True):
    """Where an actor runs."""

    host: str
    process: int
    port: int  # was free when asked, for jax.distributed's coordinator


class Worker:
    """One process of an engine. It ends with the actor."""

    def where(self) -> bytes:
        """This actor's host, address and a free port."""
        address = get_node_ip_address()
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        return msgspec.msgpack.encode(Where(address, os.getpid(), port))

    def run(self, program: str, job: bytes) -> bytes:
        """Run a program to its end: "package.module:function", one of this installation."""
        module, _, name = program.partition(":")
        return getattr(importlib.import_module(module), name)(job)
