"""Builds an engine from EngineArgs: opens the model's source, then makes device side and front
side.

`device_side` loads parameters and makes runners and cores; `front_side` makes the Engine that users
hold. A remote engine has workers that run the steps; its core is in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from jengine.assembly.backend import begin_kernels, start_backend
from jengine.assembly.block_transfers import transfers_of
from jengine.assembly.device_side import device_side
from jengine.assembly.engine import Engine
from jengine.assembly.front_side import engine_of
from jengine.assembly.grammars import core_grammars
from jengine.assembly.model_source import open_model_source
from jengine.assembly.node_rendezvous import join_nodes
from jengine.assembly.process_checks import checked_options
from jengine.assembly.recording import recorder_for
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.plain_settings import plain_settings, refuse_arrays
from jengine.assembly.settings.setting import WORKER
from jengine.assembly.start_log import log_capacity, log_long_rotation
from jengine.engine.core import EngineCore
from jengine.engine.in_process import InProcessClient
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.choice import OWN_PROCESSES, starting_executor
from jengine.executor.multihost.settings import Direction
from jengine.executor.protocol import Capacity, EngineJob, StartedExecutor
from jengine.grammar.shared_tokenizer import SharedTokenizer
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.plugin_loading import load_plugins
from jengine.runner.disk.compile_cache import enable_compile_cache
from jengine.runner.memory.memory_pool import tell_what_sleep_frees
from jengine.scheduler.scheduler import Scheduler
from sharding.jax_settings import engine_context


@engine_context()
def build_engine(
    args: EngineArgs,
    bar: Callable[..., Any],
    direction: Direction | None = None,
    told_tokenizer: SharedTokenizer | None = None,
) -> Engine:
    """Load the model and build a ready engine.

    `direction`: multi-host; processes of other nodes run the steps too. `told_tokenizer`: in a
    core's process, where fronts send their tokenizer.
    """
    load_plugins()
    asked = args.groups
    checked_options(asked.parallel)
    join_nodes(asked.parallel, direction)
    if args.executor not in OWN_PROCESSES:
        return remote_engine(args, told_tokenizer)
    enable_compile_cache(args.compilation.get("cache_dir"))
    start_backend(args.gpu_memory_utilization)
    begin_kernels(args.attention_backend)
    source = replace(open_model_source(asked.model), told_tokenizer=told_tokenizer)
    side = device_side(asked, source, bar, direction)
    log_long_rotation(source.config, side.schedule)
    log_capacity(side.cache, side.schedule, len(side.runners), jax.default_backend())
    if args.enable_sleep_mode:
        tell_what_sleep_frees(jax.default_backend())
    # Without the user's arrays, so that the engine does not keep old parameters alive.
    args = replace(args, model=str(source.folder), params=None)
    platform = jax.default_backend()
    return engine_of(
        args, source, InProcessClient(side.core), side.schedule, side.cache, platform, side
    )


def remote_engine(args: EngineArgs, told_tokenizer: SharedTokenizer | None) -> Engine:
    """Start workers that run the steps; the scheduler is in this process."""
    kind, asked = starting_executor(args.executor), args.groups
    source = replace(open_model_source(asked.model), told_tokenizer=told_tokenizer)
    if source.folder is None:
        raise ConfigError(f"executor={args.executor!r}: expected a model folder, not a live model.")
    grammars = core_grammars(source)
    plain = partial(
        plain_settings, args, process=WORKER, model=str(source.folder), dtype=source.config.dtype,
        skip_tokenizer_init=True,
    )  # fmt: skip
    executor = started(kind, job_of(asked, plain))
    capacity = executor.capacity
    cache = replace(capacity.cache, measured_blocks=asked.cache.measured_blocks)
    recorded = recorder_for(asked.watch, source, capacity.schedule, capacity.cache)
    watched = grammars.around(recorded(executor))
    coordinator = CacheCoordinator(cache)
    scheduler = Scheduler(
        capacity.schedule,
        coordinator,
        depth=capacity.depth,
        gates=[grammars.gate],
        check_drafts=watched.checked_drafts,
        transfers=transfers_of(asked, source, cache, stages=1)(coordinator, 0),
    )
    core = EngineCore(scheduler, watched, capacity.depth)
    log_long_rotation(source.config, capacity.schedule)
    log_capacity(capacity.cache, capacity.schedule, 1, capacity.platform)
    args = replace(args, model=str(source.folder))
    return engine_of(
        args, source, InProcessClient(core), capacity.schedule, capacity.cache, capacity.platform
    )


WORKER_PROGRAM = "jengine.assembly.worker:run"


def job_of(asked: Groups, settings: Callable[[str], dict[str, Any]]) -> EngineJob:
    """The workers' job. `settings` converts the engine's settings to plain data; its argument names
    the executor in errors."""
    parallel = asked.parallel
    where = f"executor={parallel.executor!r}"
    if (parallel.data_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"{where} with data_parallel_size={parallel.data_parallel_size}: "
            "replicas are in processes of their own: data_parallel_backend='process', or 'ray'."
        )
    if (parallel.pipeline_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"{where} with pipeline_parallel_size={parallel.pipeline_parallel_size}:"
            " stages over workers are not built yet; use tensor_parallel_size, or start the same "
            "program in every process."
        )
    refuse_arrays(where, asked.model.params, parallel.mesh, asked.steps.logits_processors)
    return EngineJob(
        settings=settings(where),
        options=dict(parallel.executor_options or {}),
        multihost=dict(parallel.multihost or {}),
        program=WORKER_PROGRAM,
    )


def started(kind: type[StartedExecutor], job: EngineJob) -> StartedExecutor:
    """Start the executor; checks the capacity that it reports."""
    executor = kind.start(job)
    if not isinstance(executor.capacity, Capacity):
        executor.shutdown()
        raise ConfigError(
            f"{kind.__name__}.start(): expected an executor with a Capacity as .capacity, found "
            f"{executor.capacity!r}."
        )
    return executor
