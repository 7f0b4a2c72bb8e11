"""An engine whose core runs in a process of its own, as the process of the requests has it. No jax.

In: EngineArgs. Out: an Engine, once its core is ready. This process reads the tokenizer, the core
everything else. `core_process` is the core's program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import jengine
from jengine.assembly.args import EngineArgs
from jengine.assembly.core_settings import CoreSettings
from jengine.assembly.core_shares import shares
from jengine.assembly.engine import Engine
from jengine.assembly.front_side import engine_of
from jengine.assembly.model_facts import ModelSource, generation_of, tokenizer_of
from jengine.assembly.plain_settings import plain_settings, refuse_arrays
from jengine.assembly.progress import progress_factory
from jengine.config import CacheConfig
from jengine.distributed.process_replicas import ProcessReplicas
from jengine.engine.process.client import START_SECONDS, ProcessClient, Tell
from jengine.engine.process.launch import launch
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.messages import Progress
from jengine.errors import ConfigError
from jengine.plugin_loading import load_plugins
from jengine.weights.resolve import resolve_model

CORE_PROGRAM = "jengine.assembly.core_process"
WHERE = "an engine core in a process of its own"
# Settings of requests, of this process, or of how the core is started.
NOT_FOR_CORES = (
    "model", "params", "mesh", "tokenizer", "chat_template", "multiprocess", "show_progress",
    "disable_log_stats", "trust_remote_code", "data_parallel_backend", "otlp_traces_endpoint",
)  # fmt: skip


def start_engine_process(
    args: EngineArgs, tell: Tell | None = None, *, seconds: float = START_SECONDS
) -> Engine:
    """Start a core, or one for each data-parallel replica, and return when all are ready.

    Raises what the core's engine would raise here. `tell` gets its progress instead of a bar;
    `seconds` is how long a core may be silent meanwhile.
    """
    folder = model_folder(args)
    if args.replicas_in_processes:
        return start_replicas(args, folder, tell or shown(args.show_progress), seconds)
    client = launch(CORE_PROGRAM, core_settings(args, folder))
    try:
        return engine_over(args, folder, client, tell or shown(args.show_progress), seconds)
    except BaseException:
        client.shutdown()
        raise


def start_replicas(args: EngineArgs, folder: Path, tell: Tell, seconds: float) -> Engine:
    """Start several cores, which load at the same time, and return when all are ready."""
    cores = args.data_parallel_size or 1
    devices = (args.tensor_parallel_size or 1) * (args.pipeline_parallel_size or 1)
    settings = core_settings(args, folder, tells_contents=True, data_parallel_size=None)
    mailbox = Mailbox()
    clients: list[ProcessClient] = []
    try:
        for share in shares(cores, devices, os.environ):
            clients.append(launch(CORE_PROGRAM, settings, share.cpus, share.env, mailbox))
        return replicas_over(args, folder, clients, mailbox, tell, seconds)
    except BaseException:
        for client in clients:
            client.shutdown()
        raise


def replicas_over(
    args: EngineArgs,
    folder: Path,
    clients: Sequence[ProcessClient],
    mailbox: Mailbox,
    tell: Tell,
    seconds: float,
) -> Engine:
    """The engine of several cores that share a mailbox, once all are ready. The first one's
    progress is told."""
    tokenizer = tokenizer_of(args, folder)
    ready = [
        client.wait_until_ready(tell if index == 0 else None, seconds)
        for index, client in enumerate(clients)
    ]
    schedule, cache = ready[0].schedule, min((one.cache for one in ready), key=smallest_group)
    client = ProcessReplicas(
        clients, mailbox, cache.block_size, by_urgency=schedule.policy == "priority"
    )
    source = ModelSource(ready[0].model.config, folder, tokenizer, generation_of(args, folder))
    args = replace(args, model=str(folder))
    return engine_of(args, source, client, schedule, cache, ready[0].platform)


def smallest_group(cache: CacheConfig) -> int:
    """The blocks of a cache's smallest group."""
    return min(cache.num_blocks)


def connect_engine_process(
    address: str, args: EngineArgs, *, seconds: float = START_SECONDS
) -> Engine:
    """An engine over a core that another process has started: `engine.client.address` there.

    Of the settings, only those of requests count. Shutting it down leaves the core running.
    """
    folder = model_folder(args)
    client = ProcessClient(address)
    try:
        return engine_over(args, folder, client, None, seconds)
    except BaseException:
        client.shutdown()
        raise


def model_folder(args: EngineArgs) -> Path:
    """The folder of the model; arrays and modules of this process are refused."""
    load_plugins()
    refuse_arrays(args, WHERE)
    if not isinstance(args.model, (str, Path)):
        raise ConfigError(
            f"{WHERE}: model is a {type(args.model).__name__}, which is in this process; expected "
            "the path of a folder, or 'demo'. Save it first, or leave multiprocess=True out."
        )
    return resolve_model(args.model).absolute()


def core_settings(
    args: EngineArgs, folder: Path, *, tells_contents: bool = False, **changed: Any
) -> bytes:
    """The settings that the core's program takes."""
    dtype = args.dtype if isinstance(args.dtype, str) else np.dtype(args.dtype).name
    plain = plain_settings(
        args, WHERE, NOT_FOR_CORES,
        **{"model": str(folder), "dtype": dtype, "skip_tokenizer_init": True, **changed},
    )  # fmt: skip
    return msgspec.msgpack.encode(CoreSettings(plain, tells_contents))


def engine_over(
    args: EngineArgs, folder: Path, client: ProcessClient, tell: Tell | None, seconds: float
) -> Engine:
    """The engine of a core, once that is ready."""
    tokenizer = tokenizer_of(args, folder)  # while the core loads its weights
    ready = client.wait_until_ready(tell, seconds)
    if ready.version != jengine.__version__:
        raise ConfigError(
            f"the core at {client.address} runs jengine {ready.version}, and this process "
            f"{jengine.__version__}. Use the same version in both."
        )
    source = ModelSource(ready.model.config, folder, tokenizer, generation_of(args, folder))
    args = replace(args, model=str(folder))
    return engine_of(args, source, client, ready.schedule, ready.cache, ready.platform)


def shown(wanted: bool | Callable[..., Any] | None) -> Tell:
    """Progress of a core as bars, if this process shows bars."""
    bar = progress_factory(wanted)
    open_bars: dict[str, Any] = {}

    def tell(progress: Progress) -> None:
        if progress.total is None:
            return
        stage = progress.stage
        if stage not in open_bars:
            scale = progress.unit == "B"
            open_bars[stage] = bar(
                total=progress.total, desc=stage, unit=progress.unit, unit_scale=scale
            )
        open_bars[stage].update(progress.done - open_bars[stage].n)
        if progress.done >= progress.total:
            open_bars[stage].close()

    return tell
