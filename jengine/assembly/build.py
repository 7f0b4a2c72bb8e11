"""Builds an engine from EngineArgs: reads the folder, then makes runners, scheduler and session.

Each of them gets only the settings it needs; `schedule_sizes` and `step_sizes` decide sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

import jengine
from jengine.assembly.args import EngineArgs
from jengine.assembly.backend import await_kernels, begin_kernels, start_backend
from jengine.assembly.determinism import batch_dependence
from jengine.assembly.device_defaults import OVERLAP_DEPTH
from jengine.assembly.engine import DeviceSide, Engine
from jengine.assembly.front_side import engine_of
from jengine.assembly.grammars import core_grammars
from jengine.assembly.guesser import open_guesser, with_guess_cost
from jengine.assembly.model_facts import ModelSource
from jengine.assembly.model_source import (
    is_live,
    load_parameters,
    open_model_source,
)
from jengine.assembly.processors import engine_processors
from jengine.assembly.progress import explained_if_slow
from jengine.assembly.recording import recorder_for
from jengine.assembly.remote_engine import job_of, started
from jengine.assembly.schedule_sizes import schedule_config
from jengine.assembly.step_sizes import runner_config, with_sizes
from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.distributed.process_group import CoreParts, process_group_of
from jengine.engine.client import InProcessClient
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.choice import OWN_PROCESSES, starting_executor
from jengine.executor.multihost.settings import MultihostSettings
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.models.stages import StageLayout, stage_layout
from jengine.plugin_loading import load_plugins
from jengine.runner.build import build_runners
from jengine.runner.disk.compile_cache import enable_compile_cache, what_compiling_costs
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.step.leaves import LeafOrder
from jengine.scheduler.scheduler import Scheduler
from jengine.weights.stages import StagePlaces
from sharding.mesh import engine_mesh, steps_may_queue
from sharding.placement import Placement
from sharding.replicas import mesh_of_replicas, replica_devices

logger = logging.getLogger(__name__)
# Entries of generation_config.json that give every request a penalty, and their neutral values.
NO_PENALTY = (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))


def build_engine(args: EngineArgs, bar: Callable[..., Any]) -> Engine:
    """Load the model and build an engine that is ready to serve."""
    load_plugins()
    checked_options(args)
    if args.executor not in OWN_PROCESSES:
        return remote_engine(args)
    enable_compile_cache((args.compilation_config or {}).get("cache_dir"))
    start_backend(args.gpu_memory_utilization)
    begin_kernels(args.attention_backend)
    source = open_model_source(args)
    side = device_side(args, source, bar)
    _log_capacity(side.cache, side.schedule, len(side.runners), jax.default_backend())
    # Without the user's arrays: the engine must not keep old parameters alive.
    args = replace(args, model=str(source.folder), params=None)
    platform = jax.default_backend()
    return engine_of(
        args, source, InProcessClient(side.core), side.schedule, side.cache, platform, side
    )


def remote_engine(args: EngineArgs) -> Engine:
    """Start workers that run the steps; requests are scheduled in this process."""
    kind = starting_executor(args.executor)
    source = open_model_source(args)
    if source.folder is None:
        raise ConfigError(f"executor={args.executor!r}: expected a model folder, not a live model.")
    executor = started(kind, job_of(args, str(source.folder), source.config.dtype))
    capacity = executor.capacity
    cache = replace(capacity.cache, measured_blocks=args.measured_blocks)
    grammars = core_grammars(args, source)
    scheduler = Scheduler(
        capacity.schedule,
        CacheCoordinator(cache),
        depth=capacity.depth,
        gates=[grammars.gate],
    )
    watched = recorder_for(args, source, capacity.schedule, capacity.cache)
    core = EngineCore(scheduler, grammars.around(watched(executor)), capacity.depth)
    _log_capacity(capacity.cache, capacity.schedule, 1, capacity.platform)
    args = replace(args, model=str(source.folder))
    return engine_of(
        args, source, InProcessClient(core), capacity.schedule, capacity.cache, capacity.platform
    )


def device_side(args: EngineArgs, source: ModelSource, bar: Callable[..., Any]) -> DeviceSide:
    """Load the model onto this process's devices and compile its steps."""
    start_backend(args.gpu_memory_utilization)
    await_kernels(args.attention_backend, shown=args.show_progress is not False)
    compilation = dict(args.compilation_config or {})
    penalises = any(source.generation.get(name, usual) != usual for name, usual in NO_PENALTY)
    placement = placement_for(args, source.config)
    devices = placement.replicas[0].mesh.size
    schedule = schedule_config(
        args, source.config, penalises=penalises, devices=devices, stages=placement.num_stages
    )
    guesser = open_guesser(args, source.config, schedule.speculative)
    schedule = with_guess_cost(schedule, guesser, source.config)
    layout = stage_layout(source.config, placement.num_stages)
    _log_stages(layout, len(source.config.layers))
    # Whether a step may be queued while another runs, here or in another replica.
    independent = steps_may_queue(placement.replicas[0].mesh)
    overlap = OVERLAP_DEPTH if args.overlap and independent else 0
    depth = overlap + layout.num_stages - 1
    steps = runner_config(
        args, source.config, schedule, compilation, layout.num_stages,
        penalises=penalises, same_bits=batch_dependence(args, source.config, devices) is None,
        guesser_specs=() if guesser is None else guesser.cache_specs,
    )  # fmt: skip
    schedule = with_sizes(schedule, steps.ladders)
    settings = MultihostSettings.checked(args.multihost)
    check_processes(args.executor, placement.processes)
    chosen = "wait_for" in compilation
    steps = replace(steps, early_start=starts_early(steps, placement.processes, chosen=chosen))
    with process_group_of(placement, settings) as group:
        group.agree(
            versions=(jengine.__version__, jax.__version__),
            model=source.config,
            schedule=(schedule, depth, args.seed),
            steps=steps,
            devices=[device.id for device in placement.mesh.devices.flat],
            multihost=replace(settings, address=None),
        )
        places = StagePlaces(group.observed(placement), layout)
        model, values = load_parameters(args, source, places, bar)
        order = LeafOrder(model, places, steps.matmuls)
        leaves = order.leaves(group.noted(values))
        if order.unfit:
            logger.warning(
                "XLA multiplies weights whose shards do not fit the CPU kernels: %s",
                ", ".join(order.unfit),
            )
        _log_copies(order.copied_bytes(leaves), live=is_live(args))
        loaded = None
        if guesser is not None:
            loaded = guesser.load(places, steps.matmuls, len(source.config.layers))
        group.agree_on_weights()
        with explained_if_slow(what_compiling_costs, args.show_progress is not False):
            runners, cache = build_runners(
                model, leaves, source.config, steps, order, bar, group.least, loaded
            )
        for runner in runners:  # the first set, and checked before any request
            runner.loaded.processors.number_of(engine_processors(args))
        cache = replace(cache, measured_blocks=args.measured_blocks)
        group.agree(cache=cache)
        grammars, watched = core_grammars(args, source), recorder_for(args, source, schedule, cache)
        parts = CoreParts(
            runners,
            placement,
            schedule,
            cache,
            depth,
            layout.num_stages,
            in_turn=not independent,
            watched=lambda executor: grammars.around(watched(executor)),
            gates=(grammars.gate,),
        )
        core = group.core(parts)
    return DeviceSide(core, runners, schedule, cache, depth, model, order, grammars.compiler)


def checked_options(args: EngineArgs) -> None:
    """Refuse options of an executor that has none, and replicas that are not for this process."""
    if args.replicas_in_processes:
        raise ConfigError(
            f"data_parallel_backend={args.data_parallel_backend!r}: an engine of this process "
            "alone cannot have replicas in others. Use jengine.assembly.engine_process."
            "start_engine_process, as LLM and AsyncLLM do."
        )
    if args.executor in OWN_PROCESSES and args.executor_options is not None:
        raise ConfigError(
            f"executor_options with executor={args.executor!r}: expected an executor that starts "
            "workers, such as 'ray'. Leave executor_options out."
        )


def check_processes(executor: str, processes: list[int]) -> None:
    """Refuse an executor that does not fit the processes whose devices are used."""
    if executor == "local" and len(processes) > 1:
        raise ConfigError(
            f"executor='local', but the devices are of processes {processes}: give mesh= with "
            "devices of this process alone, or leave executor out."
        )
    if executor == "multihost" and len(processes) == 1:
        raise ConfigError(
            "executor='multihost', but all devices are of this process. Call "
            "jax.distributed.initialize() in every process first, or leave executor out."
        )


def starts_early(steps: RunnerConfig, processes: list[int], *, chosen: bool) -> bool:
    """Whether steps run before every program is compiled. Not in several processes, which must all
    run the same programs; refused there where the user has chosen it."""
    if not steps.early_start or len(processes) == 1:
        return steps.early_start
    if chosen:
        raise ConfigError(
            f"compilation_config['wait_for']='largest', but the devices are of processes "
            f"{processes}, which must all run the same programs. Leave wait_for out."
        )
    return False


def placement_for(args: EngineArgs, config: ModelConfig) -> Placement:
    """The mesh of the devices that were asked for, and how this model's arrays are placed on it."""
    try:
        replicas = replica_devices(
            args.data_parallel_size,
            args.tensor_parallel_size,
            args.pipeline_parallel_size,
            args.mesh,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    heads = tuple(spec.kv_heads for spec in config.cache_specs)
    mesh = mesh_of_replicas([engine_mesh(devices, heads) for devices in replicas])
    placement = Placement(mesh)
    if len(replicas) > 1 and len(placement.processes) > 1:
        raise UnsupportedFeature(
            f"data parallelism over several processes is not built yet: {len(replicas)} replicas "
            f"are asked for on devices of the processes {placement.processes}. Make one engine per "
            "process, with mesh= of that process's devices, and divide the prompts among them."
        )
    return placement


def _log_stages(layout: StageLayout, layers: int) -> None:
    if layout.num_stages > 1:
        slots = layout.num_stages * layout.num_slots
        logger.info("%d layers in %d stages of %d slots, %d of which stay empty",
                    layers, layout.num_stages, layout.num_slots, slots - layers)  # fmt: skip


def _log_copies(count: int, *, live: bool) -> None:
    """Say what copies of weights take, beside arrays of the user's that stay in memory as well."""
    if not count:
        return
    beside = (
        " beside the given arrays; pack_weights=False multiplies from those, slower" if live else ""
    )
    logger.info("Weights packed for the CPU kernels: %.2f GB%s", count / 1e9, beside)


def _log_capacity(
    cache: CacheConfig, schedule: ScheduleConfig, replicas: int, platform: str
) -> None:
    tokens = (min(cache.num_blocks) - 1) * cache.block_size
    if replicas > 1:
        logger.info("%d data-parallel replicas, each with:", replicas)
    logger.info("%s KV cache size: %s tokens", platform.upper(), f"{tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{schedule.max_model_len:,}", tokens / schedule.max_model_len,
    )  # fmt: skip
