"""A data-parallel rank in a Ray actor: a core in a child process, which joins the front. No jax.

In: EngineArgs as bytes. Out: why the rank has ended, as bytes. Must not import ray.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.assembly.processes.deployment import deployment_of
from jengine.assembly.processes.joined_cores import Ends, run_joined
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import EngineDead, JengineError
from jengine.executor.remote.job import Ended, ended_with


def run(job: bytes) -> bytes:
    """Run the rank until the front has gone."""
    given = msgspec.msgpack.decode(job, type=dict[str, Any])
    try:
        why = run_joined(deployment_of(EngineArgs.checked("data-parallel rank", **given)), Ends())
    except JengineError as error:
        return ended_with(error)
    return msgspec.msgpack.encode(Ended()) if why is None else ended_with(EngineDead(why))
