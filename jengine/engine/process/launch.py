"""Starts an engine core in a child process that dies with this one.

In: a program and its settings as bytes. Out: a client of the core.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from jengine.confined.owned_process import OwnedProcess
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.private_folder import PrivateFolder
from jengine.wire.doors import Door

# Seconds that a core's last message may arrive after its process has ended.
LAST_WORD = 0.3


class CoreJob(msgspec.Struct, frozen=True):
    """What a core process reads from standard input at startup."""

    address: str
    parent: int  # the process that starts it
    cpus: list[int]  # that it may use; empty: all
    settings: bytes  # which its program understands
    door: Door | None = None


def launch(
    program: str,
    settings: bytes,
    cpus: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    mailbox: Mailbox | None = None,
    door: Door | None = None,
) -> ProcessClient:
    """Run a module as a core process and return its client, before the core is ready.

    `cpus`: processors it may use (none: all). `env` is added to its environment. `mailbox` may be
    shared by clients of several cores. `door` admits other hosts.
    """
    folder = PrivateFolder()
    try:
        job = CoreJob(folder.address, os.getpid(), list(cpus), settings, door)
        data = msgspec.msgpack.encode(job)
        child = OwnedProcess("the engine core", program, data, env or {}, clean=folder.remove)
        client = ProcessClient(folder.address, child, mailbox)
        child.start(lambda how: client.exited(how, LAST_WORD))
    except BaseException:
        folder.remove()
        raise
    return client
