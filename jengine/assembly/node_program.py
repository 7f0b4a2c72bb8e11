"""A follower node: runs steps of an engine whose requests and API are on node 0.

In: node 0's settings. Out: why it ended. Must not know requests.
"""

from __future__ import annotations

import logging

import msgspec

from jengine.assembly.device_side import device_side
from jengine.assembly.model_source import open_model_source
from jengine.assembly.node_rendezvous import join_nodes
from jengine.assembly.process_checks import checked_options
from jengine.assembly.processes.deployment import CoreSettings, Deployment
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.worker import follow
from jengine.distributed.follower import FollowingCore
from jengine.executor.multihost.settings import Direction
from jengine.runner.disk.compile_cache import enable_compile_cache

logger = logging.getLogger(__name__)


def run_node(deployment: Deployment) -> str:
    """Run node 0's plans until it leaves. If a node is lost, this process ends."""
    bar = progress_factory(deployment.args.show_progress)
    given = msgspec.msgpack.decode(deployment.core(), type=CoreSettings)
    args = EngineArgs.checked("node", **given.engine)  # equal to those of node 0's core
    direction = Direction()
    asked = args.groups
    checked_options(asked.parallel)
    join_nodes(asked.parallel, direction)
    enable_compile_cache(args.compilation.get("cache_dir"))
    core = device_side(asked, open_model_source(asked.model), bar, direction).core
    assert isinstance(core, FollowingCore), f"a node cannot follow with a {type(core).__name__}"
    logger.info("Node %d of %d is ready.", args.node_rank, args.nnodes)
    return follow(core)
