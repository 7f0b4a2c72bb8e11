"""Sets up KV cache offloading and transfers to other engines.

In: ready runners with their caches. Out: runners that copy blocks, a cache config with host slots,
and a planner of copies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax

import jengine
from jengine.assembly.model_facts import ModelSource
from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.memory_args import CacheSettings
from jengine.config import CacheConfig
from jengine.connectors.choice import refuse_without_pieces, scheduler_half, worker_half
from jengine.connectors.kv_events import EventPublisher
from jengine.connectors.settings import TransferSettings
from jengine.errors import ConfigError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.event_log import EventLog
from jengine.models.stages import stage_layout
from jengine.runner.runner import PlanRunner
from jengine.runner.transfers.block_shards import piece_names
from jengine.runner.transfers.device_blocks import programs_of
from jengine.runner.transfers.transfer_runner import with_transfers
from jengine.scheduler.copy_costs import CopyCosts
from jengine.scheduler.tiered_transfers import TieredTransfers
from jengine.scheduler.transfers import BlockTransfers
from sharding.placement import Placement

logger = logging.getLogger(__name__)
# Maximum bytes loaded from the host before one step; larger loads are spread over steps.
MOST_LOADED = 64 * 2**20
# Samples hashed per weights file, and bytes of each.
PIECES, PIECE = 16, 4096


def with_external_blocks(
    runners: Sequence[PlanRunner],
    cache: CacheConfig,
    asked: Groups,
    source: ModelSource,
    placement: Placement,
) -> tuple[tuple[PlanRunner, ...], CacheConfig]:
    """Runners and cache config with offloading; unchanged if it is off."""
    settings = asked.cache.transfers
    if settings is None:
        return tuple(runners), cache
    refuse_unfit(settings, cache, placement, len(runners))
    programs = programs_of(runners[0].loaded)
    sizes = [one.block_bytes for one in programs]
    held = [size * (count - 1) for size, count in zip(sizes, cache.num_blocks, strict=True)]
    share = settings.host_bytes / sum(held)
    slots = tuple(int((count - 1) * share) for count in cache.num_blocks)
    if not all(slots):
        raise ConfigError(
            f"kv_offloading_size: {settings.host_bytes} bytes hold no block of each cache group, "
            f"whose blocks take {sizes} bytes. Give more."
        )
    most = max(1, MOST_LOADED * len(sizes) // sum(sizes))
    named = namespace(asked, source, cache, placement.num_stages) if settings.is_far else ""
    pieces = piece_names(programs, placement.processes)
    process = placement.processes.index(jax.process_index())
    made = []
    for replica, runner in enumerate(runners):
        of_replica = settings.of_replica(replica, len(pieces))
        own = with_transfers(runner, slots, worker_half(of_replica, named, pieces, process))
        if not asked.steps.enforce_eager:
            own.warm_up()
        made.append(own)
    seconds = () if asked.steps.enforce_eager else made[0].load_seconds()
    logger.info(
        "KV cache in the host's memory: %.2f GiB, %s blocks", settings.host_bytes / 2**30,
        " + ".join(map(str, slots)),
    )  # fmt: skip
    return tuple(made), replace(
        cache,
        host_slots=slots,
        block_bytes=tuple(sizes),
        most_loads=most,
        pieces=pieces,
        load_seconds=seconds,
    )


def refuse_unfit(
    settings: TransferSettings, cache: CacheConfig, placement: Placement, replicas: int = 1
) -> None:
    """Raise ConfigError if this cache cannot be offloaded as configured."""
    if not cache.enable_prefix_caching:
        raise ConfigError(
            "enable_prefix_caching=False with kv_offloading_size or kv_transfer_config: blocks "
            "outside of the device are found as cached prefixes. Leave one of them out."
        )
    count = len(placement.processes)
    if count > 1 and settings.module:
        refuse_without_pieces(settings.module, placement.processes)
    peer = settings.peer
    if peer is not None and peer.hosts and len(peer.hosts) != count:
        raise ConfigError(
            f"kv_ip={list(peer.hosts)}: expected an address of each of the processes "
            f"{placement.processes}, in their order."
        )
    ports = count * replicas
    if peer is not None and peer.port + ports > 2**16:
        raise ConfigError(f"kv_port={peer.port}: expected the first of {ports} ports, below 65536.")


def transfers_of(
    asked: Groups, source: ModelSource, cache: CacheConfig, stages: int
) -> partial[BlockTransfers | None]:
    """Factory of a scheduler's transfer planner."""
    is_far = asked.cache.transfers is not None and asked.cache.transfers.is_far
    named = namespace(asked, source, cache, stages) if is_far else ""
    return partial(planned_transfers, asked.cache, named)


def planned_transfers(
    asked: CacheSettings, namespace: str, coordinator: CacheCoordinator, replica: int
) -> BlockTransfers | None:
    """Planner of a cache's block copies; None without offloading. Publishes KV events if
    configured."""
    settings, cache = asked.transfers, coordinator.config
    if asked.kv_events is not None:
        if not cache.enable_prefix_caching:
            raise ConfigError(
                "kv_events_config without prefix caching: no block is ever found again, so there "
                "is nothing to publish. Leave it out, or give enable_prefix_caching=True."
            )
        publisher = EventPublisher(asked.kv_events, replica)
        log = EventLog(cache.block_size, publisher.publish, cache.groups)
        coordinator.listeners.tell(log, publisher.close)
    if settings is None or not cache.host_slots:
        return None
    of_replica = settings.of_replica(replica, len(cache.pieces))
    return TieredTransfers(
        coordinator,
        cache.host_slots,
        cache.most_loads,
        scheduler_half(of_replica, namespace, cache.pieces),
        saves=settings.saves,
        loads=settings.loads,
        costs=CopyCosts(cache.load_seconds),
        block_bytes=cache.block_bytes,
    )


def namespace(asked: Groups, source: ModelSource, cache: CacheConfig, stages: int) -> str:
    """Namespace for stored blocks, shared only by engines with the same model, cache layout and
    version."""
    assert asked.cache.transfers is not None
    weights = asked.cache.transfers.namespace
    if weights is None:
        if source.folder is None or asked.model.params is not None:
            raise ConfigError(
                "kv_transfer_config with live parameters, which have no name: say what they are "
                "in kv_connector_extra_config={'namespace': NAME}, a new one for other values."
            )
        weights = f"{files_digest(source.folder)} {asked.model.load_format} {asked.model.seed or 0}"
    facts = (
        jengine.__version__, repr(source.config), weights, held_layers(source, cache, stages),
        cache.block_size, cache.stored_as, asked.steps.attention_backend,
    )  # fmt: skip
    return sha256(repr(facts).encode()).hexdigest()[:32]


def held_layers(source: ModelSource, cache: CacheConfig, stages: int) -> tuple[Any, ...]:
    """Contents of a stored block: layers by cache group, in order.

    A block concatenates the blocks of all stages. With equally many layers per stage this is the
    model's order, whatever the number of stages; otherwise it includes padding.
    """
    layout = stage_layout(source.config, stages) if stages > 1 else None
    padding = () if layout is None or layout.is_even else layout.runs
    return padding, [(repr(group.spec), len(group.layers) * stages) for group in cache.groups]


def files_digest(folder: Path) -> str:
    """Digest of a model folder's files: names, sizes, and samples of their contents."""
    digest = sha256()
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)} {size}\n".encode())
        with path.open("rb") as file:
            for index in range(PIECES):
                file.seek(index * max(size - PIECE, 0) // (PIECES - 1))
                digest.update(file.read(PIECE))
    return digest.hexdigest()
